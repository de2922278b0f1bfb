"""The loader: PyTorch's constructor, native work."""

from __future__ import annotations

import base64
import collections
import contextlib
import hashlib
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import _jobs, _native, _remote, _rules, _states
from . import _log as logs
from ._frameworks import framework
from ._iterator import Feeder, LoaderIterator, LogFeeder
from ._torch import native_dataset, native_sampler, unbatched
from .errors import DaemonError, ForkError, InvalidError, VersionError
from .lower import lower

#: Bytes of a job's name; a daemon takes 256 with what is added to it.
_NAME = 200
#: Loaders made in this process so far; each has its number in the names of jobs. Those of ranks are counted
#: apart, kind by kind: one that only some ranks make must not change the names of the others.
_ordinals: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)


class DataLoader:
    """Yields ``[images, targets]`` batches made in native threads.

    The arguments up to ``in_order`` are those of ``torch.utils.data.DataLoader``, with its defaults and
    errors; ``num_workers``, ``prefetch_factor``, ``persistent_workers``, ``worker_init_fn`` and
    ``multiprocessing_context`` govern Python workers, of which native datasets need none.

    dataset: path of an image folder, a :class:`forebay.Dataset`, a plain torchvision ``ImageFolder``, or
        torch's ``Subset`` or ``ConcatDataset`` of such.
    sampler: torch's ``RandomSampler``, ``SequentialSampler``, ``SubsetRandomSampler``,
        ``WeightedRandomSampler`` and ``DistributedSampler`` are done natively, with Forebay's own random
        order; any other is run.
    transform: torchvision transforms (v1 or v2), or a list of step dicts.
    share: where batches are made. ``"auto"``: in the daemon that serves this user (``forebay serve``), if
        there is one, else in this process, with the same batches in the same order either way; ``True``: in
        the daemon, which is started if there is none; a path: in the daemon that listens there;
        ``"process"``: in this process, where all loaders over one dataset and recipe draw from one pool;
        ``False``: in this process, alone. With ``True``, a path or ``"process"`` every sample is prepared
        once for all.
    level: what is shared: ``"augmented"`` copies, or only ``"decoded"`` images or ``"encoded"`` files, with
        copies of the loader's own.
    order: ``"strict"`` for the exact order; an integer D: no sample comes more than D positions late, and no
        batch waits longer for a slow one; ``"ready"``: whatever the pool has. ``None``: ready where copies
        are shared and ``shuffle`` is set, else strict.
    mixing: share of the draws that follow the loader's own order where it is not strict; it buys shuffle
        quality with preparations.
    seed: names the order and every random number; default: that of ``generator``, else 0.
    remainder: what becomes of samples that do not fill a step of all ranks: ``"pad"`` repeats the first ones
        (see :attr:`valid`), ``"drop"`` leaves them out (as ``drop_last=True`` does), ``"uneven"`` deals them
        out: batches of the last step differ by one sample and may be empty. Ranks always have equal steps.
    rank, world_size: which of how many processes of one job this is; default: what ``DistributedSampler``,
        ``torch.distributed`` or ``torchrun``'s environment says. ``world_size=1``: a loader of this process
        only.
    on_error: ``"raise"``, ``"skip"`` or ``"substitute"`` (repeat a neighbour; see :attr:`valid`).
    decode: ``"exact"``, or ``"scaled"`` to let large JPEGs be decoded at 1/2, 1/4 or 1/8.
    job: the job's name for the daemon; default: made of the process. A daemon has one live job of a name.
    output: dtype and layout of images, such as ``"float16"`` or ``"float16/channels_last"``; default: what
        the transform ends in.
    log: file that gets a line for each batch received; ``{rank}`` in it is the rank.
    replay: such a file: the loader gives those batches again, bit for bit, alone in this process.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        transform: Any = None,
        share: str | bool | os.PathLike[str] = "auto",
        level: str = "augmented",
        order: str | int | None = None,
        mixing: float = 0.1,
        seed: int | None = None,
        on_error: str = "raise",
        remainder: str = "pad",
        decode: str = "exact",
        job: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        output: str | None = None,
        log: str | os.PathLike[str] | None = None,
        replay: str | os.PathLike[str] | None = None,
    ) -> None:
        _rules.check_torch(num_workers, timeout, prefetch_factor, persistent_workers)
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            # torch's own is a sampler and a size.
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, "
                    "sampler, and drop_last"
                )
            batch_size, drop_last = None, False
        elif batch_size is None:
            if drop_last:
                raise ValueError(
                    "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
                )
        elif not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(
                f"batch_size should be a positive integer value, but got batch_size={batch_size}"
            )
        if replay is not None and log is not None:
            raise ValueError("replay option is mutually exclusive with log")
        _rules.choice("on_error", on_error, ("raise", "skip", "substitute"))
        _rules.choice("remainder", remainder, ("pad", "drop", "uneven"))
        _rules.choice("decode", decode, ("exact", "scaled"))
        _rules.choice("level", level, ("encoded", "decoded", "augmented"))
        _rules.check_share(share)
        if not 0 <= mixing <= 1:
            raise ValueError(f"mixing should be between 0 and 1, but got {mixing}")

        if job is not None and not 0 < len(os.fsencode(job)) <= _NAME:
            raise ValueError(f"job should be a name of at most {_NAME} bytes, but got {job!r}")
        self.share = os.fspath(share) if isinstance(share, os.PathLike) else share
        _prepare_index(dataset, share)
        self.dataset, transform = native_dataset(dataset, transform)
        #: The sampler that the user gave, and the one that has to be run.
        self._given, self._sampler = sampler, sampler
        parts = unbatched(batch_sampler)
        known = native_sampler(parts[0] if parts else sampler, self.dataset)
        if known is not None:
            if parts is not None:
                self._given, batch_size, drop_last = parts
            self._sampler, batch_sampler = None, None
            self.dataset, shuffle = known.dataset, known.shuffle
            drop_last = drop_last or known.drop
        self.shuffle = bool(shuffle) or self.dataset._weights is not None
        self.batch_size, self.drop_last = batch_size, bool(drop_last)
        self.remainder = "drop" if drop_last else remainder
        self.batch_sampler = batch_sampler
        self.order: str | int = self._resolve_order(order, in_order, batch_size)
        self.rank, self.world_size = self._resolve_ranks(rank, world_size, known.ranks if known else None)
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self.persistent_workers, self.worker_init_fn = persistent_workers, worker_init_fn
        self.multiprocessing_context, self.generator = multiprocessing_context, generator
        self.collate_fn, self.timeout, self.in_order = collate_fn, timeout, in_order
        self.pin_memory, self.pin_memory_device = bool(pin_memory), pin_memory_device
        self.on_error, self.decode, self.output = on_error, decode, output
        self.level, self.mixing, self.job = level, float(mixing), job
        self.seed = _rules.resolve_seed(seed, generator, self._given)
        self._picks = self.dataset._picks(self.shuffle)
        self._batched = batch_size is not None or batch_sampler is not None
        self._recipe = json.dumps({"steps": lower(transform), "decode": decode})
        #: Copies are shared where their size is known and the order is the loader's own.
        self._sharable = _native.recipe_check(self._recipe, output) is not None and self._own_order
        self._sharable = self._sharable and self._picks.is_set()
        self._ordinal, self._pid = self._number(), os.getpid()

        self._job: Any = None
        self._framework: Any = None
        # The iterator in use is known by its number: a reference would keep a dropped loader alive.
        self._turn, self._iterating = 0, False
        self._epoch = 0  # of the iterator in use, else of the next one
        #: What all ranks have received, and beyond that this one, where its share is fixed.
        self._received, self._own = _native.ReceivedSet(), _native.ReceivedSet()
        self._fixed, self._own_steps = False, 0
        #: Batches of the epoch so far.
        self._step = 0
        self._resuming = False
        self._generator_state: str | None = None
        #: What ``DistributedSampler.set_epoch`` said last.
        self._told = getattr(self._given, "epoch", None)
        if self._own_order and isinstance(self._told, int):
            self._epoch = self._told
        #: Seed and clock of the shared stream that was drawn from last.
        self._stream: tuple[int, int] | None = None
        self._failures: list[tuple[int, str, str, str]] = []
        self._reported: set[int] = set()
        self._valid: list[bool] = []
        self.log, self.replay = (
            None if path is None else logs.place(path, self.rank, self.world_size) for path in (log, replay)
        )
        self._writer: logs.Writer | None = None
        self._reader: logs.Reader | None = None
        if self.replay is not None:
            self._reader = logs.Reader(self.replay, self._header())
            self._epoch = min(self._reader.epochs, default=0)

    def _number(self) -> str:
        """Which loader of the process this is; equal on all ranks that make the same ones."""
        if self.world_size == 1:
            return str(next(_ordinals[""]))
        kind = [self.dataset.fingerprint, self._recipe, self.batch_size, self.remainder, self.order]
        digest = hashlib.blake2b(repr([*kind, self.shuffle, self.seed]).encode(), digest_size=3).hexdigest()
        return f"{digest}.{next(_ordinals[f'{digest} {self.rank} {self.world_size}'])}"

    def _resolve_ranks(
        self, rank: int | None, world_size: int | None, sampler: tuple[int, int] | None
    ) -> tuple[int, int]:
        if world_size is None and rank is not None:
            raise ValueError("rank should be given together with world_size")
        if world_size is None:
            # A sampler that is run decides itself what this process gets.
            found = sampler or (_jobs.ranks() if self._own_order else (0, 1))
        elif rank is None and world_size > 1:
            raise ValueError("world_size should be given together with rank")
        else:
            found = (rank or 0, world_size)
        if found[1] > 1 and not self._own_order:
            raise ValueError(
                "ranks are dealt in the loader's own order: leave out the sampler, or world_size"
            )
        if not 0 <= found[0] < found[1]:
            raise ValueError(f"rank should be between 0 and world_size - 1, but got {found[0]} of {found[1]}")
        return found

    def _rank_json(self) -> str:
        terms = {"rank": self.rank, "ranks": self.world_size, "batch": self.batch_size or 1}
        return json.dumps({**terms, "remainder": self.remainder})

    def _header(self) -> dict[str, Any]:
        """What an order log says of the job."""
        return {
            "dataset": self.dataset.fingerprint,
            "samples": len(self.dataset._native),
            "recipe": json.loads(self._recipe),
            "batch_size": self.batch_size,
            "seed": self.seed,
            "order": self.order,
            "shuffle": self.shuffle,
            "rank": self.rank,
            "world_size": self.world_size,
            "output": self.output,
            "on_error": self.on_error,
            "job": self.job,
        }

    def _resolve_order(self, order: str | int | None, in_order: bool, batch_size: int | None) -> str | int:
        if order is None and not in_order:
            order = 4 * (batch_size or 1) if self.shuffle else None
        pooled = self.share not in (False, "auto")
        if order is None:
            order = "ready" if pooled and self.shuffle else "strict"
        if order == "ready":
            if not pooled:
                raise ValueError("order='ready' draws from a shared pool: pass share=True or 'process'")
            if not self.shuffle:
                raise ValueError("order='ready' takes samples as they come, which needs shuffle=True")
            return order
        if order == "strict":
            return order
        if isinstance(order, str):
            raise ValueError(f"order should be None, 'strict', 'ready' or an integer, but got {order!r}")
        if isinstance(order, bool) or order < 0 or order > 1 << 20:
            raise ValueError(f"order should be between 0 and {1 << 20} positions, but got {order}")
        if order and not self.shuffle:
            raise ValueError("order > 0 lets samples overtake each other, which needs shuffle=True")
        return order

    # -- the loader's facts ---------------------------------------------------------------------------

    @property
    def sampler(self) -> Any:
        """The sampler given, else a view of the loader's own order that accepts ``set_epoch``."""
        return self._given if self._given is not None else _OwnOrder(self)

    def __len__(self) -> int:
        """Batches in an epoch, of this rank."""
        if self._reader is not None:
            return len(self._reader.epochs.get(self._epoch, ()))
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        n = len(self.dataset) if self._sampler is None else len(self._sampler)  # type: ignore[arg-type]
        if self.world_size > 1:
            return _native.rank_steps(self._rank_json(), n)
        size = self.batch_size or 1
        return n // size if self.remainder == "drop" else -(-n // size)

    @property
    def valid(self) -> Any:
        """Mask of the batch received last: False where padding repeats a sample, or where a neighbour stands
        in for one that failed."""
        if self._framework is None:
            return None
        return self._framework.mask(self._valid)

    @property
    def quarantine(self) -> list[dict[str, Any]]:
        """Samples that failed, as dicts of ``sample``, ``path``, ``stage`` and ``cause``."""
        rows = self._failures if self._job is None else self._job.quarantine()
        keys = ("sample", "path", "stage", "cause")
        return [dict(zip(keys, (row[0], os.fsdecode(row[1]), *row[2:]), strict=True)) for row in rows]

    @property
    def _fate(self) -> str:
        return "skipped" if self.on_error == "skip" else "replaced by a neighbour"

    def explain(self) -> str:
        """What is done to a sample, in which form, and where each step runs."""
        named = self.order in ("strict", "ready", 0)
        order = (self.order or "strict") if named else f"at most {self.order} positions late"
        head = (
            f"dataset   {self.dataset!r}\n"
            f"batches   {len(self)} of {self.batch_size or 1}, order {order}, shuffle {self.shuffle}, "
            f"seed {self.seed}, on_error {self.on_error}\n"
            f"{self._ranking()}"
            f"engine    {self._engine()}\n"
            f"share     {self._sharing()}\n"
            "recipe\n"
        )
        return head + _native.recipe_explain(self._recipe, self.output)

    def _ranking(self) -> str:
        if self.world_size == 1:
            return ""
        dealt = "fixed shares" if self._fixed or self._job is None else "dealt by the daemon"
        return f"rank      {self.rank} of {self.world_size}, remainder {self.remainder}, {dealt}\n"

    def _engine(self) -> str:
        if isinstance(self._job, _remote.RemoteJob):
            facts = self.metrics()
            where = f"daemon at {_remote.socket_of(self.share)}"
            if not facts:
                return f"{where}, which is lost"
            memory, threads = facts["budget_bytes"] / 1e9, facts["threads"]
            return f"{where}, {threads} native threads, {memory:.2f} GB budget for all jobs"
        if self._job is None and self.share not in (False, "process"):
            where = f"daemon at {_remote.socket_of(self.share)}"
            return f"{where} if it answers, else embedded" if self.share == "auto" else where
        memory, threads = _native.config()
        return f"embedded, {threads} native threads, {memory / 1e9:.2f} GB budget for all loaders"

    def _sharing(self) -> str:
        if self.share is False:
            return (
                "decoded images or files within this process (share=True shares copies with all jobs of this "
                "user, 'process' within this process)"
            )
        if self.replay is not None:
            return f"nothing: it repeats {self.replay}"
        if not self._own_order or not self._picks.is_set():
            return "decoded images or files: samples that come twice in an epoch are copies of their own"
        if not self._sharable:
            return (
                "decoded images or files; not copies: the size of augmented images varies, end the geometry "
                "with a fixed size"
            )
        if self.share == "auto" and self.order not in ("strict", 0):
            return "decoded images or files: share=True shares copies with this order"
        if self.level != "augmented":
            return f"{self.level} data, copies of its own"
        if self.order in ("strict", 0):
            where = ", in a daemon" if self.share == "auto" else ""
            return f"copies with loaders of equal seed and epoch{where}"
        return f"copies with all loaders of this dataset and recipe, mixing {self.mixing:g}"

    def metrics(self) -> dict[str, Any]:
        """Counters since the loader was first iterated, or joined its daemon again: reads, deliveries,
        seconds per stage, bytes. Empty while the daemon is lost."""
        return {} if self._job is None else dict(self._job.metrics())

    def plan(self) -> dict[str, Any]:
        """How memory is split between files, decoded images and copies, and why: the ``machine`` and the
        ``streams`` as they are measured, and the ``decisions`` so far, the newest last. Empty before the
        loader is iterated, and while the daemon is lost."""
        text = "" if self._job is None else self._job.planning()
        return dict(json.loads(text)) if text else {}

    def __repr__(self) -> str:
        return f"forebay.DataLoader({self.dataset!r}, batch_size={self.batch_size}, shuffle={self.shuffle})"

    # -- epochs ---------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter()`` that of ``epoch``; without it epochs count up by themselves."""
        if epoch < 0:
            raise ValueError(f"epoch should be non-negative, but got {epoch}")
        self._turn += 1
        self._iterating = False
        self._epoch, self._received, self._resuming = epoch, _native.ReceivedSet(), False
        self._own, self._own_steps, self._step = _native.ReceivedSet(), 0, 0
        self._generator_state = None

    def __iter__(self) -> Iterator[Any]:
        if self._iterating:
            # An epoch that was left early is over; the next one begins.
            self.set_epoch(self._epoch + 1)
        told = getattr(self._given, "epoch", None)
        if self._own_order and told is not None and told != self._told:
            self._told = told
            # A loaded state stays: the sampler only follows.
            if int(told) != self._epoch:
                self.set_epoch(int(told))
        if self._job is None:
            self._open()
        feeder = self._replaying() if self._reader is not None else self._start()
        self._resuming = False
        self._turn += 1
        self._iterating = True
        if self._writer is not None:
            self._writer.begin(self._epoch, self._step)
        return LoaderIterator(self, feeder)

    def _replaying(self) -> LogFeeder:
        reader = self._reader
        assert reader is not None  # asked by the caller
        if self._epoch not in reader.epochs:
            known = ", ".join(map(str, sorted(reader.epochs))) or "none"
            raise InvalidError(f"{self.replay} has no epoch {self._epoch}; it has {known}")
        base = json.loads(self._received.json())["base"]
        self._job.start_listed(self._epoch, base)
        return LogFeeder(reader, self._epoch, self._step)

    def _start(self) -> Feeder | None:
        source = self.batch_sampler if self.batch_sampler is not None else self._sampler
        if source is None:
            if not self._fixed and self._own_steps:
                raise InvalidError(
                    f"this state is what rank {self.rank} of {self.world_size} had alone; a daemon deals "
                    "to all ranks: load forebay.merge_states() of all of them"
                )
            self._job.start(self._epoch, self._received.json(), self._own.json(), self._own_steps)
            return None
        self._keep_generator()
        given = self.batch_sampler is not None
        base, skipped = self._passed()
        indices = iter(source)
        feeder = Feeder(indices, None if given else self.batch_size or 1, base, self.dataset._indices)
        self._job.start_fed(self._epoch, base, skipped, given)
        return feeder

    def _open(self) -> None:
        self._framework = framework(self.pin_memory)
        self._job = self._remote_job()
        remote = self._job is not None
        self._fixed = self.world_size > 1 and self._terms(remote)["share"] is None
        if self._job is None:
            self._job = _native.Job(self.dataset._native, self._recipe, self._terms(remote=False))
            if self._failures:
                self._job.set_quarantine(self._failures)
        if self.log is not None and self._writer is None:
            self._writer = logs.Writer(self.log, self._header())

    def _remote_job(self) -> _remote.RemoteJob | None:
        """A job of the daemon; None where this process does the work."""
        if self.share in (False, "process") or self.replay is not None:
            return None
        if self.world_size > 1 and self.share != "auto" and not _jobs.on_one_machine(self.world_size):
            raise InvalidError(
                "the ranks of this job are on several machines, and a daemon serves one: leave out share= "
                "for ranks with fixed shares"
            )
        try:
            return _remote.RemoteJob(self)
        except DaemonError:
            if self.share != "auto":
                raise
        except VersionError as problem:
            if self.share != "auto":
                raise
            warnings.warn(f"forebay: the daemon is not used: {problem}", stacklevel=4)
        return None

    def _terms(self, remote: bool) -> dict[str, Any]:
        """What a job is, besides its dataset and recipe."""
        # What "auto" gives must not depend on whether there is a daemon: only equal copies are shared.
        same = self.share != "auto" or self.order in ("strict", 0)
        # Other ranks are other processes: only a daemon that all of them have can deal to them. "auto" cannot
        # know that, and fixed shares are the same in strict order.
        alone = self.world_size == 1
        daemon = remote and same and (alone or self.share != "auto")
        shares = self._sharable and (daemon or (self.share == "process" and alone)) and self.replay is None
        return {
            "name": self._job_name(),
            "picks": self._picks,
            "output": self.output,
            "batch": self.batch_size or 1,
            "remainder": self.remainder,
            "rank": self.rank,
            "ranks": self.world_size,
            "late": self.order if isinstance(self.order, int) else 0,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "on_error": self.on_error,
            "ragged": self.collate_fn is not None or not self._batched,
            "share": self._wish() if shares else None,
        }

    def _job_name(self) -> str:
        """``job``, else the scheduler's or the process's; with the loader's number. Ranks have the same."""
        ranked = self.world_size > 1
        base = self.job or (_jobs.scheduled() if ranked else None) or f"process {_jobs.process(os.getpid())}"
        # A forked or spawned child is a job of its own, unless it is a rank.
        child = f" in {os.getpid()}" if os.getpid() != self._pid and not ranked else ""
        ranks = f" of {self.world_size} ranks" if ranked else ""
        return f"{base} loader {self._ordinal}{ranks}{child}"

    def _passed(self) -> tuple[int, int]:
        """Positions of a fed epoch that are done with, and how many of them were skipped."""
        received = json.loads(self._received.json())
        return received["base"], received["skipped"]

    def _wish(self) -> dict[str, Any]:
        order = None if self.order == "ready" else 0 if self.order == "strict" else self.order
        return {"order": order, "level": self.level, "mixing": self.mixing, "before": self._stream}

    def _clock(self) -> tuple[int, int] | None:
        """Seed and clock of the stream: copies up to it are used."""
        with contextlib.suppress(ForkError):
            if self._job is not None and (clock := self._job.clock()) is not None:
                self._stream = clock
        return self._stream

    def _sampler_generator(self) -> Any:
        source = self.batch_sampler if self.batch_sampler is not None else self._sampler
        if source is None:
            return None
        generator = getattr(source, "generator", None)
        if generator is None:
            generator = getattr(getattr(source, "sampler", None), "generator", None)
        return generator if hasattr(generator, "get_state") else None

    def _keep_generator(self) -> None:
        """Where the sampler's generator stood at the epoch's start, or is put there when resuming."""
        generator = self._sampler_generator()
        if generator is None:
            self._generator_state = None
        elif self._resuming and self._generator_state is not None:
            import torch

            raw = bytearray(base64.b64decode(self._generator_state))
            generator.set_state(torch.frombuffer(raw, dtype=torch.uint8).clone())
        else:
            self._generator_state = _states.encoded(generator)

    def _receive(self, batch: Any) -> None:
        if self._writer is not None:
            self._writer.batch(self._epoch, self._step, batch)
        (self._own if self._fixed else self._received).add(batch)
        self._own_steps += self._fixed
        self._step += 1

    def _end_epoch(self) -> None:
        if self._writer is not None:
            self._writer.end(self._epoch)
        self.set_epoch(self._epoch + 1)

    # -- state ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What was received, exactly: small, JSON-safe, valid at any time; see ``load_state_dict``."""
        return _states.save(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next ``iter()`` go on after what ``state`` says was received."""
        _states.load(self, state)

    @property
    def _own_order(self) -> bool:
        return self.batch_sampler is None and self._sampler is None

    # -- the end --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give back threads' work and memory; iterating again starts anew."""
        if self._job is not None:
            self._clock()
            job, self._job = self._job, None
            with contextlib.suppress(ForkError):
                self._failures = job.quarantine()
            job.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # A loader that is pickled, to be used in a spawned process, starts there from its state.
        state = dict(self.__dict__)
        failures = [(f["sample"], f["path"], f["stage"], f["cause"]) for f in self.quarantine]
        state["_stream"] = self._clock()
        state.update(_job=None, _framework=None, _iterating=False, _failures=failures)
        state["_resuming"] = self._resuming or self._iterating
        state["_received"], state["_own"] = self._received.json(), self._own.json()
        state.update(_picks=None, _writer=None, _reader=None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ordinal = self._number()  # beside the loaders that this process makes itself
        self._received = _native.ReceivedSet(state["_received"])
        self._own = _native.ReceivedSet(state["_own"])
        self._picks = self.dataset._picks(self.shuffle)
        if self.replay is not None:
            self._reader = logs.Reader(self.replay, self._header())


class _OwnOrder:
    """The order of the loader's coming epoch, for code that expects a sampler."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._loader.dataset)

    def __iter__(self) -> Iterator[int]:
        loader, dataset = self._loader, self._loader.dataset
        n = len(dataset._native)
        samples = loader._picks.sequence(n, loader.shuffle, loader.seed, loader._epoch)
        if dataset._indices is None:
            return iter(samples)
        # The last of equal ones: which one it is cannot be told.
        places = {sample: index for index, sample in enumerate(dataset._indices)}
        return iter([places[sample] for sample in samples])


def _prepare_index(dataset: Any, share: Any) -> None:
    """Let the daemon scan a folder that is not indexed, so that no thread does it in this process."""
    if share in (False, "process") or not isinstance(dataset, (str, os.PathLike)):
        return
    with contextlib.suppress(DaemonError, VersionError):
        remote = _remote.connect(share)
        try:
            remote.open(os.path.abspath(dataset))
        finally:
            remote.close()
