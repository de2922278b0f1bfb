"""The examples, run as a stranger runs them."""

import collections
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import daemons
import pictures
import pytest
import torch

EXAMPLES = Path(__file__).parents[3] / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Runs Python with arguments: exit code, stdout and stderr."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    if not os.path.exists(importlib.util.cache_from_source(torch.__file__)):
        # Compiling torch anew takes every process seconds.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(tmp_path_factory.mktemp("bytecode"))

    def run(*arguments, **variables):
        child = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | variables,
            start_new_session=True,
        )
        try:
            out, err = child.communicate()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
                child.wait()
        return child.returncode, out, err

    return run


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """73 samples to train on and 19 to evaluate, which batches of 12 and 2 or 3 ranks do not divide."""
    return pictures.folder(tmp_path_factory.mktemp("odd"), 92, classes=5, size=(80, 60))


@pytest.fixture
def daemon(tmp_path):
    with daemons.serving(tmp_path) as running:
        yield running


def rows(out):
    """The lines of a table that begin with a number, as lists of words."""
    return [line.split() for line in out.splitlines() if line.split()[:1] and line.split()[0].isdecimal()]


def logged(folder, name, ranks):
    """Where a run began, and (epoch, step, samples without padding) of each batch of all ranks."""
    begins, batches = [], []
    files = sorted(folder.glob(f"{name}.*.jsonl"))
    assert len(files) == ranks
    for file in files:
        for line in map(json.loads, file.read_text().splitlines()):
            if "begin" in line:
                begins.append((line["begin"], line["step"]))
            elif "epoch" in line:
                padding = line.get("invalid", [])
                valid = [sample for at, sample in enumerate(line["samples"]) if at not in padding]
                batches.append((line["epoch"], line["step"], valid))
    return min(begins), batches


def times(batches):
    """How often each sample came in each epoch."""
    found = collections.defaultdict(collections.Counter)
    for epoch, _, samples in batches:
        found[epoch].update(samples)
    return found


def once(epochs, samples):
    """What :func:`times` gives where each sample came once in each epoch."""
    return {epoch: dict.fromkeys(samples, 1) for epoch in epochs}


HELD_OUT = range(0, 92, 5)
TRAINED = sorted(set(range(92)) - set(HELD_OUT))


def test_ddp_of_a_daemon_trains_on_and_evaluates_each_sample_once(python, odd, daemon, tmp_path):
    job = [EXAMPLES / "ddp.py", odd, "--batch", 12, "--order-logs", tmp_path]
    status, out, err = python(*TORCHRUN, 2, *job, FOREBAY_SOCKET=daemon.socket)
    assert status == 0, err
    assert [(row[0], row[1], row[3]) for row in rows(out)] == [(str(e), "73/73", "19/19") for e in range(3)]
    assert times(logged(tmp_path, "train", 2)[1]) == once(range(3), TRAINED)
    assert times(logged(tmp_path, "evaluate", 2)[1]) == once(range(3), HELD_OUT)
    assert " joined " in daemon.said(), "the daemon was not used"


def test_ddp_killed_and_resumed_on_other_ranks_goes_on_as_if_nothing_had_happened(python, odd, tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    job = [EXAMPLES / "ddp.py", odd, "--batch", 12]
    kept = ["--checkpoint", tmp_path / "job.pt", "--every", 3, "--order-logs"]

    # Seven steps in an epoch: the last checkpoint has two steps of epoch 1, and two more are lost.
    status, first, err = python(*TORCHRUN, 2, *job, *kept, before, "--kill-at", 11)
    assert status != 0 and "SIGKILL" in err, err
    assert [row[0] for row in rows(first)] == ["0"]
    status, second, err = python(*TORCHRUN, 3, *job, *kept, after)
    assert status == 0, err
    assert second.startswith("resumed in epoch 1 after 24 samples, ranks: 3\n")
    assert [row[0] for row in rows(second)] == ["1", "2"]

    _, received = logged(before, "train", 2)
    begin, rest = logged(after, "train", 3)
    assert begin == (1, 2)
    counted = [batch for batch in received if batch[:2] < begin]
    assert len(counted) < len(received), "nothing was lost"
    assert times(counted + rest) == once(range(3), TRAINED)
    evaluated = logged(before, "evaluate", 2)[1] + logged(after, "evaluate", 3)[1]
    assert times(evaluated) == once(range(3), HELD_OUT)

    # Alone, without a break and without a process group.
    status, whole, err = python(*job)
    assert (status, err) == (0, "")
    broken = rows(first) + rows(second)
    assert [(row[0], row[1], row[3]) for row in broken] == [(r[0], r[1], r[3]) for r in rows(whole)]
    losses = [[float(row[2]) for row in table] for table in (broken, rows(whole))]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


def test_sweep_prepares_for_all_trials_together(python, daemon, tmp_path):
    root = tmp_path / "pictures"
    root.mkdir()
    pictures.folder(root, 200, classes=4, size=(80, 60))
    how = ["--epochs", 8, "--batch", 16, "--step", 0.02, "--stagger", 0.5, "--socket", daemon.socket]
    status, out, err = python(EXAMPLES / "sweep.py", root, *how)
    assert (status, err) == (0, "")
    trials = rows(out)
    assert [(row[0], row[2]) for row in trials] == [(str(number), "1600") for number in range(3)]
    assert len({row[1] for row in trials}) == 3
    [share] = re.findall(r"^together ([\d.]+) preparations per delivery", out, re.MULTILINE)
    assert 1 / 3 - 0.01 < float(share) < 0.9


@pytest.mark.parametrize("where", ["process", "daemon"])
def test_kfold_prepares_once_for_all_folds_and_keeps_what_is_validated(python, tmp_path, where):
    root = tmp_path / "pictures"
    root.mkdir()
    pictures.folder(root, 800, classes=4, size=(80, 60))
    # Steps that take time: folds that a busy machine starts a moment apart still run together.
    job = [EXAMPLES / "kfold.py", root, "--step", 0.03]
    if where == "daemon":
        with daemons.serving(tmp_path) as daemon:
            status, out, err = python(*job, "--socket", daemon.socket)
    else:
        status, out, err = python(*job)
    assert (status, err) == (0, "")
    folds = rows(out)
    assert [row[0] for row in folds] == [str(number) for number in range(5)]
    assert all(0 <= float(row[1]) <= 1 for row in folds)
    assert [row[2:] for row in folds] == [["160", "0", "0"]] * 5
    [share] = re.findall(r"^training ([\d.]+) preparations per delivery", out, re.MULTILINE)
    assert 0.25 - 0.01 < float(share) <= 0.35
