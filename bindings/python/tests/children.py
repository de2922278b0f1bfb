"""Programs in interpreters of their own."""

import os
import subprocess
import sys
import textwrap

#: Most programs run as if torch were not installed: importing it takes seconds.
HIDE = 'import sys; sys.modules["torch"] = None'
HEAD = """
import os, signal, sys, threading, time
# A shell has its background jobs, and so their children, ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
import forebay
root = sys.argv[1]
crop = [{"op": "random_resized_crop", "height": 16, "width": 16, "scale": [0.08, 1], "ratio": [0.75, 1.33]}]

def make(**options):
    return forebay.DataLoader(root, **({"batch_size": 8, "shuffle": True, "transform": crop} | options))

def native_threads():
    names = [open(f"/proc/self/task/{t}/comm").read() for t in os.listdir("/proc/self/task")]
    return sum(name.startswith("forebay") for name in names)
"""


def start(code, *args, torch=False, **env):
    """Runs `code` with arguments in a process; ``env`` is added to its environment."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", ("" if torch else HIDE) + HEAD + textwrap.dedent(code), *map(str, args)],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=os.environ | {k: str(v) for k, v in env.items()},
    )


def finish(child, timeout=120):
    """Exit code, stdout and stderr at its end."""
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        raise AssertionError(f"did not end: {child.communicate()}") from None
    return child.returncode, out, err


def printed(child, timeout=120):
    """What it printed; it must end well and print nothing to stderr."""
    status, out, err = finish(child, timeout)
    assert (status, err) == (0, ""), f"exit {status}, stderr:\n{err}"
    return out


def run(code, *args, timeout=120, **options):
    """Runs `code`, which must end well and print nothing to stderr; returns what it printed."""
    return printed(start(code, *args, **options), timeout)


def together(children):
    """Lets children that wait for a line go on at the same time; what each of them prints."""
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    return [printed(child) for child in children]
