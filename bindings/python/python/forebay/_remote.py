"""A job of a daemon: finds or starts the daemon, joins it, and joins again when the connection is lost."""

from __future__ import annotations

import array
import contextlib
import os
import subprocess
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from . import _native, _program
from .errors import DaemonError, JobNameError

if TYPE_CHECKING:
    from .loader import DataLoader

#: A lost daemon has so long to come back.
_RETRY = 10.0
#: A daemon that was started on demand ends after so many seconds without a job.
_IDLE_EXIT = 300

#: After so many seconds it is worth asking where the other ranks are.
_RANKS = 30.0

#: So often in a row a daemon may be lost with the same question.
_LOSSES = 3

_T = TypeVar("_T")


def socket_of(share: str | bool | os.PathLike[str]) -> str:
    """The socket that ``share`` means."""
    return os.fspath(_native.default_socket() if isinstance(share, bool) or share == "auto" else share)


def start(socket: str) -> None:
    """Have a daemon serve ``socket``; it is no error if one does."""
    program = _program.find()
    if program is None:
        raise DaemonError(
            "share=True starts a daemon, but the forebay program was not found; set FOREBAY_BIN"
        )
    command = [program, "serve", "--detach", "--socket", socket, "--idle-exit", str(_IDLE_EXIT)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise DaemonError(f"the daemon could not be started: {problem}") from problem
    if done.returncode:
        raise DaemonError(f"the daemon could not be started: {done.stderr.decode(errors='replace').strip()}")


def connect(share: str | bool | os.PathLike[str]) -> Any:
    """A connection to the daemon that ``share`` means, started if need be."""
    socket = socket_of(share)
    if share is not True:
        return _native.Remote(socket)
    try:
        return _native.Remote(socket)
    except DaemonError:
        start(socket)
        return _native.Remote(socket)


class _Fed:
    """What was fed to an epoch, for a daemon that has not seen it: a few batches, and counts before them."""

    def __init__(self, samples: int) -> None:
        self.ahead: deque[list[int]] = deque()
        self.passed, self.ended = 0, False
        #: How often each sample stands before ``passed``: a repeated sample is a copy of its own.
        self.seen = array.array("I", bytes(4 * samples))

    def add(self, samples: list[int], done: int) -> None:
        """Add what was fed now; all before position ``done`` is received."""
        self.ahead.append(samples)
        while self.ahead and self.passed + len(self.ahead[0]) <= done:
            for sample in self.ahead.popleft():
                self.seen[sample] += 1
                self.passed += 1


class RemoteJob:
    """What the loader asks of a job, asked of a daemon.

    The daemon is believed about nothing but batches: when it is gone, all that counts is what the loader has
    received, and another one goes on from there.
    """

    def __init__(self, loader: DataLoader) -> None:
        # The loader has this job: a reference back would keep a dropped loader alive.
        self._weak = weakref.ref(loader)
        self._failures: list[tuple[int, str, str, str]] = list(loader._failures)
        #: The epoch that is being iterated and whether its batches are given, if it is fed; what was fed.
        self._begun: tuple[int, bool | None] | None = None
        self._fed = _Fed(0)
        deadline = time.monotonic() + _RETRY
        while True:
            self._native = connect(loader.share)
            try:
                self._join()
                return
            except DaemonError:
                # One that is about to end takes no job; then another can be started.
                if loader.share is not True or time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    @property
    def _loader(self) -> DataLoader:
        loader = self._weak()
        assert loader is not None  # nobody else asks
        return loader

    def _join(self) -> None:
        loader = self._loader
        self._native.join(loader.dataset._native, loader._recipe, loader._terms(remote=True))
        if self._failures:
            self._native.set_quarantine(self._failures)

    def _asked(self, ask: Callable[[Any], _T]) -> _T:
        """Ask; when the daemon is lost, join again, go on with the epoch and ask once more."""
        lost: DaemonError | None = None
        for _ in range(_LOSSES):
            if lost or not self._native.is_mine():
                # A forked child comes here too: it is a job of its own.
                self._revive()
            try:
                return ask(self._native)
            except DaemonError as problem:
                lost = problem
        raise self._gone(f"was lost {_LOSSES} times in a row", lost) from lost

    def _revive(self) -> None:
        share = self._loader.share
        deadline = time.monotonic() + _RETRY
        while True:
            try:
                self._native = connect(share)
                self._join()
                if self._begun is not None:
                    self._begin(*self._begun)
                return
            except (DaemonError, JobNameError) as problem:
                # The name may belong to the lost connection for a moment.
                if time.monotonic() >= deadline:
                    gone = f"was lost and did not come back within {_RETRY:.0f} s"
                    raise self._gone(gone, problem) from problem
                time.sleep(0.05)

    def _gone(self, what: str, problem: Exception | None) -> DaemonError:
        return DaemonError(
            f"the daemon at {socket_of(self._loader.share)} {what} ({problem}); the loader's state_dict() "
            "says what was received, and a loader that loads it goes on from there"
        )

    # -- what a job does ------------------------------------------------------------------------------

    def start(self, epoch: int, received: str, own: str, steps: int) -> None:
        self._start(epoch, None)

    def start_fed(self, epoch: int, base: int, skipped: int, given: bool) -> None:
        self._fed = _Fed(len(self._loader.dataset._native))
        self._start(epoch, given)

    def _start(self, epoch: int, given: bool | None) -> None:
        self._begun = None
        self._asked(lambda _: self._begin(epoch, given))
        self._begun = (epoch, given)

    def _begin(self, epoch: int, given: bool | None) -> None:
        loader = self._loader
        if given is None:
            now, own = loader._received, loader._own
            count = now.count() + own.count()
            self._native.start(epoch, now.json(), count, own.json(), loader._own_steps)
            return
        fed, (base, skipped) = self._fed, loader._passed()
        seen = fed.seen.tobytes() if fed.passed else b""
        self._native.start_fed(epoch, base, skipped, given, fed.passed, seen)
        for samples in fed.ahead:
            self._native.feed(samples)
        if fed.ended:
            self._native.feed_end()

    def feed(self, samples: list[int]) -> None:
        self._asked(lambda native: native.feed(samples))
        self._fed.add(samples, self._loader._passed()[0])

    def feed_end(self) -> None:
        self._asked(lambda native: native.feed_end())
        self._fed.ended = True

    def next(self, timeout: float) -> Any:
        batch = self._asked(lambda native: self._awaited(native, timeout))
        if (clock := self._native.clock()) is not None:
            # Whoever joins next must not be given what this job has used.
            self._loader._stream = clock
        return batch

    def _awaited(self, native: Any, timeout: float) -> Any:
        loader = self._loader
        if loader.world_size == 1 or loader._fixed or 0 < timeout <= _RANKS:
            return native.next(timeout)
        try:
            return native.next(_RANKS)
        except TimeoutError:
            warnings.warn(
                f"forebay: rank {loader.rank} has waited {_RANKS:.0f} s for a batch: an epoch begins when "
                f"all {loader.world_size} ranks of job {loader._job_name()!r} iterate it; a loader of "
                "this process only takes world_size=1",
                stacklevel=6,
            )
            return native.next(timeout and timeout - _RANKS)

    def metrics(self) -> dict[str, Any]:
        with contextlib.suppress(DaemonError):
            if self._native.is_mine():
                return dict(self._native.metrics())
        return {}

    def planning(self) -> str:
        with contextlib.suppress(DaemonError):
            if self._native.is_mine():
                return str(self._native.planning())
        return ""

    def clock(self) -> tuple[int, int] | None:
        clock: tuple[int, int] | None = self._native.clock()
        return clock

    def quarantine(self) -> list[tuple[int, str, str, str]]:
        # What is known of a lost daemon stays known.
        with contextlib.suppress(DaemonError):
            if self._native.is_mine():
                self._failures = self._native.quarantine()
        return self._failures

    def set_quarantine(self, failures: list[tuple[int, str, str, str]]) -> None:
        self._failures = list(failures)
        # It comes with a state: what was begun before is over.
        self._begun = None
        self._asked(lambda native: native.set_quarantine(failures))

    def close(self) -> None:
        self._native.close()
