"""Datasets that Forebay reads natively: folders, parts of them, and several of them one behind the other."""

from __future__ import annotations

import array
import functools
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import _native
from .errors import InvalidError

#: (weights, samples in an epoch, with replacement)
_Weights = tuple[list[float], int, bool]


class Dataset:
    """Samples of one or more folders. ``subset``, ``filter`` and ``mix`` make others of it.

    Loaders over parts of one dataset share what they have in common.
    """

    def __init__(
        self,
        folders: Sequence[_Folder],
        indices: list[int] | None = None,
        weights: _Weights | None = None,
        parts: tuple[int, ...] | None = None,
    ) -> None:
        self._folders = tuple(folders)
        self._native = _native.Dataset([folder.native for folder in folders])
        #: Samples of the folders that are in; all without it.
        self._indices = indices
        self._weights = weights
        #: How many samples each dataset has that was put together.
        self._parts = parts or (len(self._native) if indices is None else len(indices),)

    def __len__(self) -> int:
        if self._weights is not None:
            return self._weights[1]
        return len(self._native) if self._indices is None else len(self._indices)

    # -- what is in it --------------------------------------------------------------------------------

    @property
    def classes(self) -> list[str]:
        """Names of the classes, where all folders have the same."""
        first = self._folders[0].classes
        if any(folder.classes != first for folder in self._folders):
            raise AttributeError("the folders of this dataset have different classes")
        return first

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Number of every class."""
        return {name: i for i, name in enumerate(self.classes)}

    @functools.cached_property
    def targets(self) -> list[int]:
        """Class index of every sample."""
        everything = [target for folder in self._folders for target in folder.native.targets()]
        return everything if self._indices is None else [everything[index] for index in self._indices]

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(path, class index) of every sample."""
        return [(self.path(i), target) for i, target in enumerate(self.targets)]

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """As ``samples``; torchvision's other name for it."""
        return self.samples

    @functools.cached_property
    def fingerprint(self) -> str:
        """Names the content: files, sizes and classes, and which of them are in."""
        if self._indices is None and self._weights is None:
            return self._native.fingerprint
        digest = hashlib.blake2b(self._native.fingerprint.encode(), digest_size=16)
        if self._indices is not None:
            digest.update(b"indices" + array.array("q", self._indices).tobytes())
        if self._weights is not None:
            weights, samples, replacement = self._weights
            digest.update(
                b"weights" + array.array("d", weights).tobytes() + repr((samples, replacement)).encode()
            )
        return digest.hexdigest()

    def path(self, index: int) -> str:
        """File of a sample."""
        index = index if self._indices is None else self._indices[index]
        for folder in self._folders:
            if index < len(folder.native):
                return os.path.join(folder.root, os.fsdecode(folder.native.name(index)))
            index -= len(folder.native)
        raise IndexError("sample index out of range")

    # -- what can be made of it -----------------------------------------------------------------------

    def subset(self, indices: Iterable[int]) -> Dataset:
        """The samples at ``indices``, in that order where the loader does not shuffle."""
        self._check_unmixed("subset")
        n, picked = len(self), [int(index) for index in indices]
        if any(not 0 <= index < n for index in picked):
            bad = next(index for index in picked if not 0 <= index < n)
            raise IndexError(f"sample {bad} of a dataset of {n}")
        if self._indices is not None:
            picked = [self._indices[index] for index in picked]
        return Dataset(self._folders, picked)

    def filter(self, keep: Callable[[str, int], bool]) -> Dataset:
        """The samples for which ``keep(path, target)`` is true."""
        self._check_unmixed("filter")
        return self.subset(i for i, (path, target) in enumerate(self.samples) if keep(path, target))

    def mix(self, weights: Iterable[float], samples: int | None = None, replacement: bool = True) -> Dataset:
        """A new draw for every epoch: ``samples`` of them (as many as there are, by default), by weight.

        There is one weight for each sample, or one for each dataset that :func:`forebay.concat` put
        together: the share of it in an epoch.
        """
        self._check_unmixed("mix")
        n, given = len(self), [float(weight) for weight in weights]
        if 1 < len(self._parts) == len(given) != n:
            if any(weight > 0 and not size for weight, size in zip(given, self._parts, strict=True)):
                raise InvalidError("a part without samples should have weight 0")
            pairs = zip(given, self._parts, strict=True)
            given = [weight / size for weight, size in pairs for _ in range(size)]
        elif len(given) != n:
            parts = f", or one for each of {len(self._parts)} parts" if len(self._parts) > 1 else ""
            raise InvalidError(f"mix() takes one weight for each of {n} samples{parts}, but got {len(given)}")
        everything = given
        if self._indices is not None:
            everything = [0.0] * len(self._native)
            for index, weight in zip(self._indices, given, strict=True):
                everything[index] += weight
        count = n if samples is None else int(samples)
        mixed = Dataset(self._folders, self._indices, (everything, count, bool(replacement)))
        mixed._picks(True)  # says now what is wrong with the weights
        return mixed

    def _check_unmixed(self, what: str) -> None:
        if self._weights is not None:
            raise TypeError(f"{what}() of a mixed dataset: take the subset first, then mix")

    def _picks(self, shuffle: bool) -> Any:
        """Which samples of the folders a loader takes in an epoch."""
        n = len(self._native)
        if self._weights is not None:
            return _native.Picks.weighted(*self._weights, n)
        return _native.Picks(self._indices, n, not shuffle)

    def __repr__(self) -> str:
        roots = " + ".join(repr(folder.root) for folder in self._folders)
        what = "" if self._weights is None else ", mixed"
        return f"Dataset({roots}, samples={len(self)}{what})"

    def __getstate__(self) -> dict[str, Any]:
        roots = [folder.root for folder in self._folders]
        return {"roots": roots, "indices": self._indices, "weights": self._weights, "parts": self._parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        folders = [_Folder(root) for root in state["roots"]]
        Dataset.__init__(self, folders, state["indices"], state["weights"], state["parts"])


class ImageFolder(Dataset):
    """A folder with one sub-folder per class, read as ``torchvision.datasets.ImageFolder`` reads it.

    The first open scans the folder in parallel and writes an index to the user's cache directory
    (``FOREBAY_CACHE_DIR``); later opens map it. The index is made anew when a folder's time or name changed.
    A long scan shows its progress on stderr when that is a terminal.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__([_Folder(os.fspath(root))])

    @property
    def root(self) -> str:
        """The folder."""
        return self._folders[0].root

    def __repr__(self) -> str:
        return f"ImageFolder({self.root!r}, samples={len(self)}, classes={len(self.classes)})"


def concat(datasets: Iterable[Dataset | str | os.PathLike[str]]) -> Dataset:
    """Datasets (or paths of image folders) one behind the other, with the class indices that each has."""
    members = [one if isinstance(one, Dataset) else ImageFolder(one) for one in datasets]
    if not members:
        raise ValueError("concat() needs at least one dataset")
    folders: list[_Folder] = []
    starts: dict[str, int] = {}
    indices: list[int] = []
    for member in members:
        if member._weights is not None:
            raise TypeError("concat() of a mixed dataset: put together first, then mix")
        shift: list[int] = []
        for folder in member._folders:
            # Parts of one folder are parts of one dataset: they share.
            if folder.root not in starts:
                starts[folder.root] = sum(len(known.native) for known in folders)
                folders.append(folder)
            shift.extend(range(starts[folder.root], starts[folder.root] + len(folder.native)))
        indices.extend(shift if member._indices is None else (shift[index] for index in member._indices))
    everything = indices == list(range(sum(len(folder.native) for folder in folders)))
    parts = tuple(len(member) for member in members)
    return Dataset(folders, None if everything else indices, None, parts)


class _Folder:
    """An opened folder."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.native = _native.Folder(root, _Progress(root) if sys.stderr.isatty() else None)
        self.classes: list[str] = [os.fsdecode(name) for name in self.native.classes()]


class _Progress:
    """One line on stderr that counts files, for scans that take longer than a moment."""

    def __init__(self, root: str) -> None:
        self.root, self.start, self.shown = root, time.monotonic(), 0.0

    def __call__(self, found: int) -> None:
        now = time.monotonic()
        if now - self.start > 1.0 and now - self.shown > 0.2:
            self.shown = now
            print(f"\rforebay: indexing {self.root}: {found} files", end="", file=sys.stderr, flush=True)

    def __del__(self) -> None:
        if self.shown:
            print(file=sys.stderr)
