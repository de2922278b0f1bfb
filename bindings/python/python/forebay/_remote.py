"""A job of a daemon: finds or starts the daemon, joins it, and joins again when the connection is lost."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import weakref
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


class RemoteJob:
    """What the loader asks of a job, asked of a daemon.

    The daemon is believed about nothing but batches: when it is gone, all that counts is what the loader has
    received, and another one goes on from there.
    """

    def __init__(self, loader: DataLoader, native: Any) -> None:
        # The loader has this job: a reference back would keep a dropped loader alive.
        self._weak, self._native = weakref.ref(loader), native
        self._failures: list[tuple[int, str, str, str]] = list(loader._failures)
        #: How the epoch that is being iterated was started, and what was fed to it.
        self._begun: Callable[[], None] | None = None
        self._fed: list[list[int]] = []
        self._ended = False
        self._join()

    @property
    def _loader(self) -> DataLoader:
        loader = self._weak()
        assert loader is not None  # nobody else asks
        return loader

    def _join(self) -> None:
        loader = self._loader
        self._native.join(
            loader.dataset._native, loader._recipe, name=loader._job_name(), **loader._spec(remote=True)
        )
        if self._failures:
            self._native.set_quarantine(self._failures)

    def _asked(self, ask: Callable[[Any], _T]) -> _T:
        """Ask; when the daemon is lost, join again, go on with the epoch and ask once more."""
        if self._native.is_mine():
            try:
                return ask(self._native)
            except DaemonError:
                pass
        # A forked child comes here too: it is a job of its own.
        self._revive()
        return ask(self._native)

    def _revive(self) -> None:
        share = self._loader.share
        deadline = time.monotonic() + _RETRY
        while True:
            try:
                self._native = connect(share)
                self._join()
                break
            except (DaemonError, JobNameError) as problem:
                # The name may belong to the lost connection for a moment.
                if time.monotonic() >= deadline:
                    raise DaemonError(
                        f"the daemon at {socket_of(share)} was lost and did not come back within "
                        f"{_RETRY:.0f} s ({problem}); the loader's state_dict() says what was received, "
                        "and a loader that loads it goes on from there"
                    ) from problem
                time.sleep(0.05)
        if self._begun is not None:
            self._begun()
            for samples in self._fed:
                self._native.feed(samples)
            if self._ended:
                self._native.feed_end()

    # -- what a job does ------------------------------------------------------------------------------

    def start(self, epoch: int, received: str) -> None:
        self._begun, self._fed, self._ended = None, [], False

        def begin() -> None:
            now = self._loader._received
            self._native.start(epoch, now.json(), now.count())

        self._asked(lambda _: begin())
        self._begun = begin

    def start_fed(self, epoch: int, base: int, skipped: int, given: bool) -> None:
        self._begun, self._fed, self._ended = None, [], False

        def begin() -> None:
            self._native.start_fed(epoch, *self._loader._passed(), given)

        self._asked(lambda _: begin())
        self._begun = begin

    def feed(self, samples: list[int]) -> None:
        self._asked(lambda native: native.feed(samples))
        self._fed.append(samples)

    def feed_end(self) -> None:
        self._asked(lambda native: native.feed_end())
        self._ended = True

    def next(self, timeout: float) -> Any:
        return self._asked(lambda native: native.next(timeout))

    def metrics(self) -> dict[str, Any]:
        with contextlib.suppress(DaemonError):
            if self._native.is_mine():
                return dict(self._native.metrics())
        return {}

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
        self._asked(lambda native: native.set_quarantine(failures))

    def close(self) -> None:
        self._native.close()
