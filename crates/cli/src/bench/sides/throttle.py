"""Reads of Python loaders at the speed of a simulated device that all processes share.

The same file, lock and arithmetic as `forebay_arena::throttle`, so that loaders in any language contend
for one device. `patch` makes a process obey, and the worker processes that it forks; `open_throttled` and
`pil_loader` are for those who open files themselves.

A file is asked for in windows of 4 MiB, however small the pieces are in which a library reads it: a
kernel and a store's client read ahead too. So an image is one request.
"""

import builtins
import fcntl
import io
import os
import struct
import sys
import time

_HEADER = struct.Struct("<8sII10Q")
_MAGIC = b"FBTHROT\0"
_VERSION = 1
_WINDOW = 4 << 20
_SECOND = 1_000_000_000
_open = io.open


class Throttle:
    """The device in a file."""

    def __init__(self, path):
        self.path = os.path.abspath(path)
        self.book(time.monotonic_ns(), None, 0, 0)

    def book(self, now, file, offset, size):
        """Takes the time of one request at `now`; gives its start and end. No `file`: only looks."""
        # Opened anew each time: a forked child must not share its parent's lock.
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            held = os.pread(descriptor, _HEADER.size + 8 * 1024, 0)
            numbers = _parse(self.path, held)
            if file is None:
                return now, now
            booked = schedule(numbers, now, file, offset, size)
            os.pwrite(descriptor, _render(numbers), 0)
            return booked
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def wait(self, file, offset, size):
        """Returns when a read of `size` bytes at `offset` of `file` (device, inode) is done."""
        done = self.book(time.monotonic_ns(), file, offset, size)[1]
        while (left := done - time.monotonic_ns()) > 0:
            time.sleep(left / _SECOND)


def schedule(numbers, now, file, offset, size):
    """As `Device::schedule`: changes the state and gives start and end of the request."""
    lanes = numbers["lanes"]
    lane = min(range(len(lanes)), key=lanes.__getitem__)
    start = max(now, lanes[lane])
    moves = numbers["head"] != (*file, offset)
    begin = max(numbers["link_free"], start + numbers["latency"])
    done = begin + (numbers["seek"] if moves else 0) + -(-size * _SECOND // numbers["bandwidth"])
    lanes[lane] = numbers["link_free"] = done
    numbers["head"] = (*file, offset + size)
    numbers["requests"] += 1
    numbers["bytes"] += size
    numbers["seeks"] += moves
    return start, done


def _parse(path, held):
    if len(held) < _HEADER.size or held[:8] != _MAGIC:
        raise ValueError(f"{path}: not a throttle: it was made by something else")
    _, version, inflight, *rest = _HEADER.unpack_from(held)
    if version != _VERSION or len(held) != _HEADER.size + 8 * inflight:
        raise ValueError(f"{path}: not a throttle: version {version}, {len(held)} bytes")
    bandwidth, latency, seek, link_free, device, inode, offset, requests, count, seeks = rest
    return {
        "bandwidth": bandwidth,
        "latency": latency,
        "seek": seek,
        "link_free": link_free,
        "head": (device, inode, offset),
        "requests": requests,
        "bytes": count,
        "seeks": seeks,
        "lanes": list(struct.unpack_from(f"<{inflight}Q", held, _HEADER.size)),
    }


def _render(numbers):
    lanes = numbers["lanes"]
    fixed = [numbers[name] for name in ("bandwidth", "latency", "seek", "link_free")]
    counts = [numbers[name] for name in ("requests", "bytes", "seeks")]
    header = _HEADER.pack(_MAGIC, _VERSION, len(lanes), *fixed, *numbers["head"], *counts)
    return header + struct.pack(f"<{len(lanes)}Q", *lanes)


class _Raw(io.FileIO):
    """A file whose reads wait for the device."""

    def __init__(self, path, throttle):
        super().__init__(path, "rb")
        found = os.fstat(self.fileno())
        self._identity, self._size = (found.st_dev, found.st_ino), found.st_size
        self._throttle, self._paid = throttle, (0, 0)

    def _pay(self, count):
        at = self.tell()
        end = self._size if count < 0 else min(at + count, self._size)
        while at < end:
            low, high = self._paid
            if not low <= at < high:
                high = min(at + _WINDOW, self._size)
                self._throttle.wait(self._identity, at, high - at)
                self._paid = (at, high)
            at = high

    def read(self, size=-1):
        self._pay(-1 if size is None else size)
        return super().read(size)

    def readall(self):
        self._pay(-1)
        return super().readall()

    def readinto(self, buffer):
        self._pay(memoryview(buffer).nbytes)
        return super().readinto(buffer)


def _named():
    """The device of this process, opened once; `None` without one."""
    path = os.environ.get("FOREBAY_THROTTLE")
    if path and (_named.throttle is None or _named.throttle.path != os.path.abspath(path)):
        _named.throttle = Throttle(path)
    return _named.throttle if path else None


_named.throttle = None


def open_throttled(path, buffering=-1):
    """The file for reading bytes, at the speed of the device in `FOREBAY_THROTTLE`."""
    throttle = _named()
    if throttle is None:
        return _open(path, "rb", buffering)
    raw = _Raw(path, throttle)
    return raw if buffering == 0 else io.BufferedReader(raw)


def pil_loader(path):
    """As torchvision's, for `ImageFolder(loader=pil_loader)`."""
    from PIL import Image

    with open_throttled(path) as file:
        return Image.open(file).convert("RGB")


def patch(*roots):
    """From now on files under `roots` are read at the device's speed: by `open`, by `io.open` and what
    uses it, and by torchvision. Forked children do the same; spawned ones have to call it. Calling it
    again adds roots."""
    if _named() is None:
        raise ValueError("FOREBAY_THROTTLE names no device")
    patch.roots += tuple(os.path.join(os.path.realpath(root), "") for root in roots)
    builtins.open = io.open = _open_some
    if "torchvision.io" in sys.modules:
        import torchvision.io as package
        from torchvision.io import image as module

        if module.read_file is not _read_file:
            _read_file.original = module.read_file
            package.read_file = module.read_file = _read_file


patch.roots = ()


def _is_ours(path):
    if isinstance(path, int):
        return False
    return os.path.realpath(os.fsdecode(path)).startswith(patch.roots)


def _open_some(
    file,
    mode="r",
    buffering=-1,
    encoding=None,
    errors=None,
    newline=None,
    closefd=True,
    opener=None,
):
    if set(mode) - set("rbt") or opener or not patch.roots or not _is_ours(file):
        return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
    opened = open_throttled(file, buffering if "b" in mode else -1)
    return opened if "b" in mode else io.TextIOWrapper(opened, encoding, errors, newline)


def _read_file(path):
    if _is_ours(path):
        with open_throttled(path, 0) as raw:
            raw._pay(-1)
    return _read_file.original(path)
