"""A real daemon for tests, and what can be seen of it from outside."""

import contextlib
import json
import os
import signal
import subprocess
import time

from forebay import _program


def program():
    found = _program.find()
    assert found, "the forebay program is missing: set FOREBAY_BIN"
    return found


class Daemon:
    """``forebay serve`` on a socket of its own."""

    def __init__(self, folder, memory="512MB", threads=2, *flags):
        self.socket = str(folder / "forebay.sock")
        self.log = folder / "log"
        self._command = [program(), "serve", "--socket", self.socket, "--memory", memory]
        self._command += ["--threads", str(threads), *flags]
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until(lambda: self.ask("status")[0] == 0)

    def ask(self, *arguments):
        """Exit code and stdout of a command of the program."""
        done = subprocess.run(
            [program(), *arguments, "--socket", self.socket], capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout

    def status(self):
        code, text = self.ask("status", "--json")
        assert code == 0
        return json.loads(text)

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        return self.process.wait(timeout=30)

    def said(self):
        return self.log.read_text()


@contextlib.contextmanager
def serving(folder, *arguments):
    daemon = Daemon(folder, *arguments)
    try:
        yield daemon
    finally:
        if daemon.process.poll() is None:
            daemon.kill()


def until(condition, seconds=30):
    """Waits for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.005)


def private_bytes(pid=None):
    """Memory that this process has for itself (USS)."""
    with open(f"/proc/{pid or os.getpid()}/smaps_rollup") as rollup:
        lines = [line.split() for line in rollup]
    return sum(int(line[1]) << 10 for line in lines if line[0] in ("Private_Clean:", "Private_Dirty:"))
