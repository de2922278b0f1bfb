"""One pass over a loader."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .errors import ClosedError, InvalidError

if TYPE_CHECKING:
    from ._log import Reader
    from ._native import Batch
    from .loader import DataLoader

#: Batches that a sampler is asked for ahead of the one that is awaited.
_AHEAD = 4


class Feeder:
    """Takes indices from a Python sampler, a few batches ahead, and feeds them to the job."""

    def __init__(
        self, source: Iterator[Any], size: int | None, base: int, table: list[int] | None = None
    ) -> None:
        #: ``size`` is None when the source yields whole batches; ``base`` samples were received before;
        #: ``table`` says which samples its indices are.
        self._source, self._size, self._base, self._table = source, size, base, table
        self._ahead, self._done = 0, False

    def feed(self, job: Any) -> None:
        while not self._done and self._ahead < _AHEAD:
            if self._size is None:
                chunk = next(self._source, None)
            else:
                chunk = list(itertools.islice(self._source, self._size)) or None
            if chunk is None:
                self._done = True
                job.feed_end()
            else:
                indices = [int(index) for index in chunk]
                if any(index < 0 for index in indices):
                    raise InvalidError(f"the sampler yielded the negative index {min(indices)}")
                if not indices:
                    continue
                if self._table is not None:
                    most, n = max(indices), len(self._table)
                    if most >= n:
                        raise InvalidError(f"the sampler yielded index {most}, but there are {n} samples")
                    indices = [self._table[index] for index in indices]
                job.feed(indices)
                # What was received before a resume is passed over, and no batch comes of it.
                passed = min(self._base, len(indices))
                self._base -= passed
                self._ahead += passed < len(indices)

    def starved(self, job: Any) -> None:
        """Nothing that was fed is left."""
        self._ahead = 0
        self.feed(job)

    def took(self) -> None:
        self._ahead = max(0, self._ahead - 1)


class LogFeeder:
    """Feeds the batches that an order log names."""

    def __init__(self, reader: Reader, epoch: int, step: int) -> None:
        self._reader, self._epoch, self._step = reader, epoch, step
        self._ahead, self._done = 0, False

    def feed(self, job: Any) -> None:
        while not self._done and self._ahead < _AHEAD:
            if self._step == len(self._reader.epochs[self._epoch]):
                self._done = True
                job.feed_end()
                return
            job.feed_copies(self._reader.batch(self._epoch, self._step))
            self._step += 1
            self._ahead += 1

    def starved(self, job: Any) -> None:
        self._ahead = 0
        self.feed(job)

    def took(self) -> None:
        self._ahead -= 1


class LoaderIterator:
    """Yields the batches of one epoch; ``iter(loader)`` makes it."""

    def __init__(self, loader: DataLoader, feeder: Feeder | LogFeeder | None) -> None:
        self._loader, self._feeder, self._over = loader, feeder, False
        self._turn = loader._turn

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        loader = self._loader
        if self._over:
            raise StopIteration
        if loader._job is None:
            raise ClosedError("the loader was closed")
        if loader._turn != self._turn:
            raise ClosedError(
                "a newer iter(loader), set_epoch() or load_state_dict() has taken over; "
                "use a second loader to iterate twice at a time"
            )
        try:
            if self._feeder is not None:
                self._feeder.feed(loader._job)
            batch = loader._job.next(float(loader.timeout))
            while batch is False:
                # Samples that were skipped used up what was fed ahead.
                assert self._feeder is not None  # only a fed epoch starves
                self._feeder.starved(loader._job)
                batch = loader._job.next(float(loader.timeout))
            data = None if batch is None else self._collate(batch)
        except BaseException:
            self._over = True
            raise
        if batch is None:
            self._over = True
            loader._end_epoch()
            self._report()
            raise StopIteration
        if self._feeder is not None:
            self._feeder.took()
        loader._receive(batch)
        return data

    def _collate(self, batch: Batch) -> Any:
        loader = self._loader
        loader._valid = batch.valid
        columns = [self._column(kind, values) for _, kind, values in batch.columns()]
        if loader.collate_fn is None and loader._batched:
            return columns
        # Row by row; class indices become plain numbers, as a torchvision dataset gives them.
        rows = [column.tolist() if getattr(column, "ndim", None) == 1 else column for column in columns]
        samples = list(zip(*rows, strict=True))
        if not samples and loader.collate_fn is None:
            return columns  # a rank that is left without a sample in the last step
        if not loader._batched and samples:
            return list(samples[0]) if loader.collate_fn is None else loader.collate_fn(samples[0])
        return loader.collate_fn(samples) if loader.collate_fn is not None else samples

    def _column(self, kind: str, values: Any) -> Any:
        to = self._loader._framework
        if isinstance(values, list):
            return [to.tensor(one) for one in values]
        # Keeping a small field must not keep the memory of a whole batch.
        return to.tensor(values) if kind == "image" else to.owned(values)

    def _report(self) -> None:
        known = self._loader._reported
        new = [failure for failure in self._loader.quarantine if failure["sample"] not in known]
        if new:
            known.update(failure["sample"] for failure in new)
            shown = "; ".join(f"{f['path']}: {f['cause']}" for f in new[:5])
            more = f"; and {len(new) - 5} more" if len(new) > 5 else ""
            warnings.warn(
                f"forebay: {len(new)} samples failed and were {self._loader._fate}: {shown}{more} "
                "(all of them: loader.quarantine)",
                stacklevel=3,
            )
