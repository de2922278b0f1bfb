"""Datasets that Forebay reads natively."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from ._native import Folder


class ImageFolder:
    """A folder with one sub-folder per class, read as ``torchvision.datasets.ImageFolder`` reads it.

    The first open scans the folder in parallel and writes an index to the user's cache directory
    (``FOREBAY_CACHE_DIR``); later opens map it. The index is made anew when a folder's time or name changed.
    A long scan shows its progress on stderr when that is a terminal.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)
        self._native = Folder(self.root, _Progress(self.root) if sys.stderr.isatty() else None)
        self.classes: list[str] = [os.fsdecode(name) for name in self._native.classes()]
        self.class_to_idx: dict[str, int] = {name: i for i, name in enumerate(self.classes)}
        self._targets: list[int] | None = None

    @property
    def targets(self) -> list[int]:
        """Class index of every sample."""
        if self._targets is None:
            self._targets = self._native.targets()
        return self._targets

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(path, class index) of every sample."""
        return [(self.path(i), target) for i, target in enumerate(self.targets)]

    imgs = samples

    @property
    def fingerprint(self) -> str:
        """Names the content: files, sizes and classes."""
        return self._native.fingerprint

    def path(self, index: int) -> str:
        """File of a sample."""
        return os.path.join(self.root, os.fsdecode(self._native.name(index)))

    def __len__(self) -> int:
        return len(self._native)

    def __repr__(self) -> str:
        return f"ImageFolder({self.root!r}, samples={len(self)}, classes={len(self.classes)})"

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["root"])  # type: ignore[misc]


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
