"""Forebay feeds training jobs with ready batches.

>>> import forebay
>>> loader = forebay.DataLoader("path/to/imagefolder", batch_size=64, shuffle=True, transform=...)
... # doctest: +SKIP

``DataLoader`` takes PyTorch's arguments; reading, decoding and augmenting run in native threads. Importing
this package starts no thread and does not import torch.
"""

from __future__ import annotations

import atexit as _atexit

from . import errors
from ._native import __version__, config
from ._native import configure as _configure
from ._native import shutdown as _shutdown
from ._states import merge_states
from .dataset import Dataset, ImageFolder, concat
from .loader import DataLoader

__all__ = [
    "DataLoader",
    "Dataset",
    "ImageFolder",
    "__version__",
    "concat",
    "config",
    "configure",
    "errors",
    "merge_states",
]


def configure(
    memory: int | str | None = None,
    threads: int | None = None,
    cache: str | None = None,
    disk: str | None = None,
) -> None:
    """Set this process's memory budget (bytes or ``"4GB"``), number of native threads, and what is kept.

    ``cache`` is ``"auto"`` (files, decoded images and copies as planned from what is measured), ``"off"``,
    ``"encoded"`` or ``"decoded"`` (as many as fit), ``"no-evict"`` (decoded images if all fit, else files),
    or parts of a hundred for files, decoded images and copies such as ``"25-50-25"``; to compare
    with, ``"lru"`` and ``"lru-decoded"`` evict what was used least recently.

    ``disk`` is a directory on a local disk with a size, such as ``"/local/forebay:100GB"``. Files that are
    not in the system's memory are kept there, also for later runs, so that slow storage is read once. One
    process at a time has the directory: a second one gets a ``StorageError`` at its first iteration.

    Call it before the first loader is iterated. Defaults: ``FOREBAY_MEMORY``, else a quarter of what the
    cgroup or the machine allows, at most 16 GiB; ``FOREBAY_THREADS``, else the cores that affinity and
    cgroup leave; ``FOREBAY_CACHE``, else ``"auto"``; ``FOREBAY_DISK``, else no
    disk.
    """
    _configure(memory, threads, cache, disk)


_atexit.register(_shutdown)
