"""What Forebay raises. Plain classes with plain attributes, so that every one of them pickles."""

from __future__ import annotations


class ForebayError(Exception):
    """Base of everything Forebay raises on its own account."""


class InvalidError(ForebayError, ValueError):
    """An argument or a state cannot be used."""


class RecipeError(ForebayError, ValueError):
    """The transform cannot be turned into native steps, or its numbers are wrong."""


class DatasetNotFoundError(ForebayError, FileNotFoundError):
    """There is no dataset at that place, or it is empty."""

    def __str__(self) -> str:  # OSError would print only errno pairs
        return str(self.args[0]) if self.args else ""


class StorageError(ForebayError, OSError):
    """A folder of the dataset or a file of ours cannot be read."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class VersionError(ForebayError):
    """A file or state was written by a newer Forebay."""


class BudgetError(ForebayError, MemoryError):
    """The memory budget cannot hold what the loader needs to make progress."""


class RaggedBatchError(ForebayError, RuntimeError):
    """Images of one batch differ in size and there is no ``collate_fn``."""


class DaemonError(ForebayError, ConnectionError):
    """No daemon answers, or the one that did is gone and did not come back.

    What was received stays known: ``state_dict()`` of the loader still works, and the loader can be iterated
    again when there is a daemon.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class JobNameError(InvalidError):
    """Another live job of the daemon has the same name."""


class ForkError(ForebayError, RuntimeError):
    """A loader that was started is used in a forked child."""


class ClosedError(ForebayError, RuntimeError):
    """The loader was closed."""


class SampleError(ForebayError, RuntimeError):
    """One sample could not be made.

    Attributes: ``sample`` (its index), ``path``, ``stage`` (``read``, ``decode`` or ``augment``), ``cause``.
    """

    def __init__(
        self, message: str, sample: int = -1, path: str = "", stage: str = "", cause: str = ""
    ) -> None:
        super().__init__(message, sample, path, stage, cause)
        self.sample, self.path, self.stage, self.cause = sample, path, stage, cause

    def __str__(self) -> str:
        return str(self.args[0])


class SampleChangedError(SampleError):
    """A file's size or time is not what the index says; the next open indexes the folder again."""
