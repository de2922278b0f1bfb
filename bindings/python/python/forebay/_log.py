"""Order logs: a line for each batch received, so that the job can be repeated alone.

JSON lines. The first one says what the job was. ``{"begin": epoch, "step": k}``: an epoch begins, or goes on
after ``k`` batches; what was logged of it from there on does not count. ``{"epoch": …, "step": …, "seed": …,
"generation": g, "copies": […], "samples": […], …}``: a batch; the copy of a sample is named by seed, sample,
``g`` plus its entry of ``copies`` (0 without), and occurrence. ``{"end": epoch}``: all of it was received.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from .errors import InvalidError, StorageError, VersionError

if TYPE_CHECKING:
    from ._native import Batch

VERSION = 1
#: What must be the same for two runs to be one job.
_SAME = ("dataset", "recipe", "samples")
#: Steps that may be missing in a row.
_GAP = 10_000_000
_BATCH = re.compile(rb'\{"epoch": (\d+), "step": (\d+), ')

#: Seed, sample, generation, occurrence, and whether it is more than padding.
Copy = tuple[int, int, int, int, bool]


def place(path: str | os.PathLike[str], rank: int, ranks: int) -> str:
    """The file of a rank."""
    text = os.fspath(path)
    if "{rank}" in text:
        return text.replace("{rank}", str(rank))
    return f"{text}.rank{rank}" if ranks > 1 else text


class Writer:
    """Writes a log, or goes on with one of the same job."""

    def __init__(self, path: str, header: dict[str, Any]) -> None:
        self._path, self._pid = path, os.getpid()
        try:
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (closed by close)
            self._continue(header)
        except OSError as problem:
            raise StorageError(f"the order log {path!r} cannot be written: {problem}") from problem

    def _continue(self, header: dict[str, Any]) -> None:
        size = self._file.seek(0, os.SEEK_END)
        if size:
            self._file.seek(0)
            _check(_header(self._path, self._file.readline()), header, self._path)
            # A process that was killed may have left half a line.
            tail = min(size, 1 << 16)
            while True:
                self._file.seek(size - tail)
                end = self._file.read(tail).rfind(b"\n")
                if end >= 0 or tail == size:
                    break
                tail = min(size, 2 * tail)
            self._file.truncate(size - tail + end + 1)
        else:
            self._line({"forebay_log": VERSION, **header})

    def _line(self, line: dict[str, Any]) -> None:
        # A forked child is a job of its own.
        if os.getpid() == self._pid:
            self._file.write(json.dumps(line).encode() + b"\n")

    def begin(self, epoch: int, step: int) -> None:
        self._line({"begin": epoch, "step": step})

    def batch(self, epoch: int, step: int, batch: Batch) -> None:
        seed, generation, copies, occurrences = batch.names()
        line: dict[str, Any] = {"epoch": epoch, "step": step, "seed": seed, "generation": generation}
        line["samples"] = batch.samples
        optional = {
            "copies": copies,
            "occurrences": occurrences,
            "invalid": [at for at, valid in enumerate(batch.valid) if not valid],
        }
        line.update({name: values for name, values in optional.items() if values})
        self._line(line)

    def end(self, epoch: int) -> None:
        self._line({"end": epoch})

    def close(self) -> None:
        self._file.close()


class Reader:
    """Finds the batches of a log."""

    def __init__(self, path: str, header: dict[str, Any]) -> None:
        self._path = path
        #: Where the batches of each epoch are, step by step.
        self.epochs: dict[int, list[int]] = {}
        try:
            self._file = open(path, "rb")  # noqa: SIM115 (closed by close)
        except OSError as problem:
            raise StorageError(f"the order log {path!r} cannot be read: {problem}") from problem
        _check(_header(path, self._file.readline()), header, path)
        at = self._file.tell()
        for number, line in enumerate(self._file, 2):
            if line.endswith(b"\n"):
                self._note(number, line, at)
            at += len(line)

    def _note(self, number: int, line: bytes, at: int) -> None:
        if found := _BATCH.match(line):
            epoch, step = int(found[1]), int(found[2])
            steps = self._steps(epoch, step, number) if epoch not in self.epochs else self.epochs[epoch]
            if step != len(steps):
                raise InvalidError(
                    f"{self._path}, line {number}: step {step} of epoch {epoch} is out of turn"
                )
            steps.append(at)
            return
        try:
            record = json.loads(line)
            if "begin" in record:
                epoch, step = int(record["begin"]), int(record["step"])
                for later in [known for known in self.epochs if known > epoch]:
                    del self.epochs[later]
                del self._steps(epoch, step, number)[step:]
            elif "end" not in record:
                raise KeyError("begin")
        except (ValueError, KeyError, TypeError) as problem:
            raise InvalidError(f"{self._path}, line {number}: not a line of an order log") from problem

    def _steps(self, epoch: int, step: int, number: int) -> list[int]:
        """The batches of an epoch, at least up to a step: some may not have been logged."""
        steps = self.epochs.setdefault(epoch, [])
        if step - len(steps) > _GAP:
            raise InvalidError(f"{self._path}, line {number}: step {step} is far beyond the one before")
        steps.extend([-1] * (step - len(steps)))
        return steps

    def batch(self, epoch: int, step: int) -> list[Copy]:
        """The copies of a batch."""
        at = self.epochs[epoch][step]
        if at < 0:
            raise InvalidError(f"{self._path} does not have step {step} of epoch {epoch}")
        self._file.seek(at)
        try:
            record = json.loads(self._file.readline())
            samples = record["samples"]
            copies = record.get("copies") or [0] * len(samples)
            occurrences = record.get("occurrences") or [0] * len(samples)
            invalid = set(record.get("invalid", ()))
            seed, generation = record["seed"], record["generation"]
            if not len(samples) == len(copies) == len(occurrences):
                raise ValueError("lengths differ")
            return [
                (seed, sample, (generation + copy) % (1 << 64), occurrence, at not in invalid)
                for at, (sample, copy, occurrence) in enumerate(
                    zip(samples, copies, occurrences, strict=True)
                )
            ]
        except (ValueError, KeyError, TypeError) as problem:
            raise InvalidError(
                f"{self._path}: step {step} of epoch {epoch} is damaged: {problem!r}"
            ) from problem

    def close(self) -> None:
        self._file.close()


def _header(path: str, line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line)
        version = header["forebay_log"]
    except (ValueError, KeyError, TypeError) as problem:
        raise InvalidError(f"{path} is not an order log") from problem
    if not isinstance(version, int) or version > VERSION:
        raise VersionError(
            f"{path}: log version {version} is newer than this Forebay understands; upgrade it"
        )
    return dict(header)


def _check(header: dict[str, Any], mine: dict[str, Any], path: str) -> None:
    for name in _SAME:
        if header.get(name) != mine[name]:
            theirs, ours = header.get(name), mine[name]
            raise InvalidError(f"{path} is the log of another job: its {name} is {theirs!r}, here {ours!r}")
