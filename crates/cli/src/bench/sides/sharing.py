# The commands of `forebay bench sharing` and `neighbours`. This process leads: it imports once and forks the jobs, so that
# a job costs only the memory that it changes, and tells each what it is told itself. A job reads one byte
# of each page and nothing else.

import select
import signal
import socket

PAGE = 4096
stream = None
jobs = []


class Job:
    """A forked process that takes commands."""

    def __init__(self, number):
        own, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            own.close()
            for job in jobs:
                job.lines.close()
            become(number, theirs)
        theirs.close()
        self.lines = own.makefile("rw")
        own.close()

    def send(self, line):
        self.lines.write(line + "\n")
        self.lines.flush()

    def receive(self):
        line = self.lines.readline()
        said = json.loads(line) if line else {"error": "a job ended"}
        if "error" in said:
            raise RuntimeError(said["error"])
        return said

    def end(self):
        self.lines.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def become(number, lines):
    """Makes this process a job."""
    global _replies, SEED
    sys.stdin = lines.makefile()
    _replies = lines.makefile("w")
    lines.close()
    SEED += number
    obey({"open": begin, "run": run, "close": end})


def take():
    """The next batch, touched: how many images it had."""
    import torch

    images = next(stream)
    images.view(-1).view(torch.uint8)[::PAGE].sum().item()
    return len(images)


def begin(threads, address):
    """Makes a loader and takes its first batch."""
    global stream, THREADS, ADDRESS
    THREADS, ADDRESS = threads, address
    if stream is None:
        stream = iter(later())
        check(next(stream))
    take()
    reply(opened=True)


def run(skip, step):
    """Takes batches until told to stop, with `step` seconds of other work after each; says when each
    arrived, on a clock that all processes share."""
    arrivals, until, before = [], None, {}
    while until is None or arrivals[-1][0] < until:
        images = take()
        arrivals.append((time.monotonic(), images))
        if len(arrivals) == skip:
            before = numbers()
            reply(warm=True)
        time.sleep(step)
        if len(arrivals) >= skip and until is None and select.select([sys.stdin], [], [], 0)[0]:
            until = json.loads(sys.stdin.readline() or '{"at": 0}')["at"]
    after = numbers()
    figures = {name: after.get(name) for name in ("preparations", "deliveries", "decoded_bytes")}
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    reply(arrivals=arrivals[skip - 1 :], counters=grown, **figures)


def numbers():
    return {name: value for name, value in counted().items() if type(value) in (int, float)}


def end():
    global stream
    if not KEEP:
        stream.close()
        stream = None
    reply(closed=True)


def lead(command):
    """Gives a command to some jobs and passes on what they say."""

    def tell(first, count, **fields):
        while command == "open" and FRESH and jobs:
            jobs.pop().end()
        while len(jobs) < first + count:
            jobs.append(Job(len(jobs)))
        chosen = jobs[first : first + count]
        for job in chosen:
            job.send(json.dumps({"cmd": command, **fields}))
        reply(said=[job.receive() for job in chosen])

    return tell


def signals(number):
    """Sends a signal to some jobs."""

    def tell(first, count):
        for job in jobs[first : first + count]:
            os.kill(job.pid, number)
        reply(said=[])

    return tell


serve(
    freeze=signals(signal.SIGSTOP),
    thaw=signals(signal.SIGCONT),
    **{command: lead(command) for command in ("open", "run", "stop", "close")},
)
