"""The loader: PyTorch's constructor, native work."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import operator
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import _native, _remote
from ._frameworks import framework
from ._iterator import Feeder, LoaderIterator
from .dataset import ImageFolder
from .errors import DaemonError, ForkError, InvalidError, VersionError
from .lower import lower

#: Version of the state's format.
_STATE = 2
#: Bytes of a job's name; a daemon takes 256 with what is added to it.
_NAME = 200
#: Loaders made in this process so far; each has its number in the names of jobs.
_ordinals = itertools.count()


class DataLoader:
    """Yields ``[images, targets]`` batches made in native threads.

    The arguments up to ``in_order`` are those of ``torch.utils.data.DataLoader``, with its defaults and
    errors; ``num_workers``, ``prefetch_factor``, ``persistent_workers``, ``worker_init_fn`` and
    ``multiprocessing_context`` govern Python workers, of which native datasets need none.

    dataset: path of an image folder, a :class:`forebay.ImageFolder`, or a plain torchvision ``ImageFolder``.
    transform: torchvision transforms (v1 or v2), or a list of step dicts.
    share: where batches are made. ``"auto"``: in the daemon that serves this user (``forebay serve``), if
        there is one, else in this process, with the same batches in the same order either way; ``True``: in
        the daemon, which is started if there is none; a path: in the daemon that listens there;
        ``"process"``: in this process, where all loaders over one dataset and recipe draw from one pool;
        ``False``: in this process, alone. With ``True``, a path or ``"process"`` every sample is prepared
        once for all.
    level: what is shared: ``"augmented"`` copies, or only ``"decoded"`` or ``"encoded"`` data.
    order: ``"strict"`` for the exact order; an integer D: no sample comes more than D positions late, and no
        batch waits longer for a slow one; ``"ready"``: whatever the pool has. ``None``: ready where copies
        are shared and ``shuffle`` is set, else strict.
    mixing: share of the draws that follow the loader's own order where it is not strict; it buys shuffle
        quality with preparations.
    seed: names the order and every random number; default: that of ``generator``, else 0.
    on_error: ``"raise"``, ``"skip"`` or ``"substitute"`` (repeat a neighbour; see :attr:`valid`).
    decode: ``"exact"``, or ``"scaled"`` to let large JPEGs be decoded at 1/2, 1/4 or 1/8.
    job: the job's name for the daemon; default: made of the process. A daemon has one live job of a name.
    output: dtype and layout of images, such as ``"float16"`` or ``"float16/channels_last"``; default: what
        the transform ends in.
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
        decode: str = "exact",
        job: str | None = None,
        output: str | None = None,
    ) -> None:
        _check_torch_rules(num_workers, timeout, prefetch_factor, persistent_workers)
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
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
        _choice("on_error", on_error, ("raise", "skip", "substitute"))
        _choice("decode", decode, ("exact", "scaled"))
        _choice("level", level, ("encoded", "decoded", "augmented"))
        _check_share(share)
        if not 0 <= mixing <= 1:
            raise ValueError(f"mixing should be between 0 and 1, but got {mixing}")

        if job is not None and not 0 < len(os.fsencode(job)) <= _NAME:
            raise ValueError(f"job should be a name of at most {_NAME} bytes, but got {job!r}")
        self.share = os.fspath(share) if isinstance(share, os.PathLike) else share
        self.shuffle = bool(shuffle)
        self.order: str | int = self._resolve_order(order, in_order, batch_size)
        _prepare_index(dataset, share)
        self.dataset, transform = _native_dataset(dataset, transform)
        self.batch_size, self.drop_last = batch_size, bool(drop_last)
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self.persistent_workers, self.worker_init_fn = persistent_workers, worker_init_fn
        self.multiprocessing_context, self.generator = multiprocessing_context, generator
        self.collate_fn, self.timeout, self.in_order = collate_fn, timeout, in_order
        self.pin_memory, self.pin_memory_device = bool(pin_memory), pin_memory_device
        self.batch_sampler, self._sampler = batch_sampler, sampler
        self.on_error, self.decode, self.output = on_error, decode, output
        self.level, self.mixing, self.job = level, float(mixing), job
        self._ordinal, self._pid = next(_ordinals), os.getpid()
        self.seed = _resolve_seed(seed, generator, sampler)
        self._batched = batch_size is not None or batch_sampler is not None
        self._recipe = json.dumps({"steps": lower(transform), "decode": decode})
        #: Copies are shared where their size is known and the order is the loader's own.
        self._sharable = _native.recipe_check(self._recipe, output) is not None and self._own_order

        self._job: Any = None
        self._framework: Any = None
        # The iterator in use is known by its number: a reference would keep a dropped loader alive.
        self._turn, self._iterating = 0, False
        self._epoch = 0  # of the iterator in use, else of the next one
        self._received = _native.ReceivedSet()
        self._resuming = False
        self._generator_state: str | None = None
        #: Seed and clock of the shared stream that was drawn from last.
        self._stream: tuple[int, int] | None = None
        self._failures: list[tuple[int, str, str, str]] = []
        self._reported: set[int] = set()
        self._valid: list[bool] = []

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
        return self._sampler if self._sampler is not None else _OwnOrder(self)

    def __len__(self) -> int:
        """Batches in an epoch."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        n = len(self.dataset) if self._sampler is None else len(self._sampler)  # type: ignore[arg-type]
        size = self.batch_size or 1
        return n // size if self.drop_last else -(-n // size)

    @property
    def valid(self) -> Any:
        """Mask of the batch received last: False where a neighbour stands in for a sample that failed."""
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
            f"engine    {self._engine()}\n"
            f"share     {self._sharing()}\n"
            "recipe\n"
        )
        return head + _native.recipe_explain(self._recipe, self.output)

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
            return "nothing (share=True shares with all jobs of this user, 'process' within this process)"
        if not self._own_order:
            return "nothing: samplers run in strict order, with copies of their own"
        if not self._sharable:
            return "nothing: the size of augmented images varies; end the geometry with a fixed size"
        if self.share == "auto" and self.order not in ("strict", 0):
            return "nothing: share=True shares copies with this order"
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
        self._generator_state = None

    def __iter__(self) -> Iterator[Any]:
        if self._iterating:
            # An epoch that was left early is over; the next one begins.
            self.set_epoch(self._epoch + 1)
        if self._job is None:
            self._open()
        source = self.batch_sampler if self.batch_sampler is not None else self._sampler
        if source is None:
            self._job.start(self._epoch, self._received.json())
            feeder = None
        else:
            self._keep_generator()
            given = self.batch_sampler is not None
            base, skipped = self._passed()
            indices = iter(source)
            feeder = Feeder(indices, None if given else self.batch_size or 1, base)
            self._job.start_fed(self._epoch, base, skipped, given)
        self._resuming = False
        self._turn += 1
        self._iterating = True
        return LoaderIterator(self, feeder)

    def _open(self) -> None:
        self._framework = framework(self.pin_memory)
        self._job = self._remote_job()
        if self._job is None:
            self._job = _native.Job(self.dataset._native, self._recipe, **self._spec(remote=False))
            if self._failures:
                self._job.set_quarantine(self._failures)

    def _remote_job(self) -> _remote.RemoteJob | None:
        """A job of the daemon; None where this process does the work."""
        if self.share in (False, "process"):
            return None
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

    def _spec(self, remote: bool) -> dict[str, Any]:
        """What a job is, besides its dataset and recipe."""
        # What "auto" gives must not depend on whether there is a daemon: only equal copies are shared.
        same = self.share != "auto" or self.order in ("strict", 0)
        shares = self._sharable and ((remote and same) or self.share == "process")
        return {
            "output": self.output,
            "batch": self.batch_size or 1,
            "drop_last": self.drop_last,
            "late": self.order if isinstance(self.order, int) else 0,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "on_error": self.on_error,
            "ragged": self.collate_fn is not None or not self._batched,
            "share": self._wish() if shares else None,
        }

    def _job_name(self) -> str:
        """``job``, else the scheduler's or the process's; with the rank and the loader's number."""
        ranks = int(os.environ.get("WORLD_SIZE") or 1)
        base = self.job or (_scheduled() if ranks > 1 else None) or f"process {_process(os.getpid())}"
        rank = f" rank {os.environ.get('RANK', 0)}" if ranks > 1 else ""
        # A forked or spawned child is a job of its own.
        child = f" in {os.getpid()}" if os.getpid() != self._pid else ""
        return f"{base}{rank} loader {self._ordinal}{child}"

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
            self._generator_state = _encoded(generator)

    def _receive(self, batch: Any) -> None:
        self._received.add(batch)

    def _end_epoch(self) -> None:
        self.set_epoch(self._epoch + 1)

    # -- state ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What was received, exactly: small, JSON-safe, valid at any time; see ``load_state_dict``."""
        start = self._generator_state
        if start is None and (generator := self._sampler_generator()) is not None:
            start = _encoded(generator)  # the coming epoch begins where the generator stands
        return {
            "version": _STATE,
            "dataset": self.dataset.fingerprint,
            "samples": len(self.dataset),
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self._epoch,
            "received": json.loads(self._received.json()),
            "generator": start,
            "stream": self._clock(),
            "quarantine": [[f["sample"], f["path"], f["stage"], f["cause"]] for f in self.quarantine],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next ``iter()`` go on after what ``state`` says was received."""
        version = state.get("version") if isinstance(state, dict) else None
        if not isinstance(version, int):
            raise InvalidError("this is not a state of a forebay loader")
        if version > _STATE:
            raise VersionError(
                f"state version {version} is newer than this Forebay understands; upgrade Forebay"
            )
        try:
            samples, fingerprint = int(state["samples"]), str(state["dataset"])
            seed, epoch = operator.index(state["seed"]), operator.index(state["epoch"])
            shuffle, generator = bool(state["shuffle"]), state["generator"]
            received_text = json.dumps(state["received"])
            failures = [(operator.index(s), str(p), str(g), str(c)) for s, p, g, c in state["quarantine"]]
            if generator is not None:
                base64.b64decode(generator, validate=True)
            stream = state.get("stream")  # not in version 1
            if stream is not None:
                stream = (operator.index(stream[0]), operator.index(stream[1]))
                if not all(0 <= number < 1 << 64 for number in stream):
                    raise ValueError(stream)
        except (KeyError, IndexError, TypeError, ValueError) as problem:
            raise InvalidError(f"the state is damaged: {problem!r}") from problem
        if any(not 0 <= failure[0] < samples for failure in failures):
            raise InvalidError(f"the state is damaged: a sample in quarantine is not below {samples}")
        if epoch < 0 or not 0 <= seed < 1 << 64:
            raise InvalidError(f"the state is damaged: epoch {epoch}, seed {seed}")
        if (samples, fingerprint) != (len(self.dataset), self.dataset.fingerprint):
            raise InvalidError(
                f"the state belongs to another dataset ({samples} samples, {fingerprint}); "
                f"this one has {len(self.dataset)} samples, {self.dataset.fingerprint}"
            )
        if shuffle != self.shuffle:
            raise InvalidError(f"the state was made with shuffle={shuffle}")
        received = _native.ReceivedSet(received_text, len(self.dataset) if self._own_order else 1 << 63)

        if seed != self.seed:
            self.close()
            self.seed = seed
        self.set_epoch(epoch)
        self._received, self._resuming, self._generator_state = received, True, generator
        self._stream = stream
        self._failures, self._reported = failures, {failure[0] for failure in failures}
        if self._job is not None:
            self._job.set_quarantine(failures)

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
        state["_received"] = self._received.json()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ordinal = next(_ordinals)  # beside the loaders that this process makes itself
        self._received = _native.ReceivedSet(state["_received"])


class _OwnOrder:
    """The order of the loader's coming epoch, for code that expects a sampler."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._loader.dataset)

    def __iter__(self) -> Iterator[int]:
        loader = self._loader
        if not loader.shuffle:
            return iter(range(len(self)))
        return iter(_native.permutation(len(self), loader.seed, loader._epoch))


def _encoded(generator: Any) -> str:
    return base64.b64encode(bytes(generator.get_state().tolist())).decode()


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} should be one of {', '.join(map(repr, choices))}, but got {value!r}")


def _check_share(share: Any) -> None:
    if isinstance(share, (bool, os.PathLike)) or share in ("auto", "process"):
        return
    if not isinstance(share, str) or os.sep not in share:
        raise ValueError(
            "share should be 'auto', 'process', True, False or the path of a daemon's socket, "
            f"but got {share!r}"
        )


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


def _scheduled() -> str | None:
    """What all ranks of a job have in common."""
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    if run and run != "none":
        return run
    if slurm := os.environ.get("SLURM_JOB_ID"):
        return f"{slurm}.{os.environ.get('SLURM_STEP_ID', 0)}"
    return f"parent {_process(os.getppid())}"


def _process(pid: int) -> str:
    """A process, told apart from one of the same number in another container."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            started = stat.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        started = "0"
    return f"{pid}.{started}"


def _check_torch_rules(
    num_workers: int, timeout: float, prefetch_factor: int | None, persistent: bool
) -> None:
    if num_workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
        )
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError(
            "prefetch_factor option could only be specified in multiprocessing."
            "let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
        )
    if prefetch_factor is not None and prefetch_factor < 0:
        raise ValueError("prefetch_factor option should be non-negative")
    if persistent and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _resolve_seed(seed: int | None, generator: Any, sampler: Any) -> int:
    if seed is None:
        generator = generator if generator is not None else getattr(sampler, "generator", None)
        if generator is not None and hasattr(generator, "initial_seed"):
            seed = generator.initial_seed()
        else:
            seed = getattr(sampler, "seed", None)
            seed = seed if isinstance(seed, int) else 0
    return seed % (1 << 64)


def _native_dataset(dataset: Any, transform: Any) -> tuple[ImageFolder, Any]:
    if isinstance(dataset, ImageFolder):
        return dataset, transform
    if isinstance(dataset, (str, os.PathLike)):
        return ImageFolder(dataset), transform
    kind = type(dataset)
    if kind.__module__ == "torchvision.datasets.folder" and kind.__name__ == "ImageFolder":
        from torchvision.datasets.folder import IMG_EXTENSIONS, default_loader

        plain = dataset.loader is default_loader and dataset.extensions == IMG_EXTENSIONS
        if plain and dataset.target_transform is None:
            if transform is not None and dataset.transform is not None:
                raise ValueError("transform is given both to the dataset and to the loader")
            return ImageFolder(dataset.root), transform if transform is not None else dataset.transform
    raise TypeError(
        f"dataset should be the path of an image folder, a forebay.ImageFolder or a torchvision ImageFolder "
        f"with its default loader, but got {kind.__module__}.{kind.__name__}"
    )
