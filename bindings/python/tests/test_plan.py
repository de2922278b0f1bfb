"""Guards the plan as a user meets it: it is made, explained and follows the jobs."""

import json
import os
import subprocess
import sys
import threading

import pictures
import pytest
import runs
from daemons import program, serving, until

# Decoded images of 32 KB: those of some fit into the budget, and so do all files.
COUNT, SIDE = 600, (160, 136)
BUDGET = "16MB"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("plan")
    pictures.folder(root, COUNT, classes=2, size=SIDE)
    return root


def training(images, share, **settings):
    return runs.Recording(images, batch_size=8, shuffle=True, transform=runs.CROP, share=share, **settings)


def decisions(loader):
    return loader.plan().get("decisions", [])


def draw(loader, enough):
    """Epochs until `enough` says so."""
    for _ in range(500):
        seen = [sample for batch in runs.epoch(loader) for sample in batch.samples]
        assert sorted(seen) == list(range(COUNT)), "every sample once"
        if enough():
            return
    raise AssertionError("nothing was decided")


def test_a_daemon_plans_explains_and_follows_its_jobs(images, tmp_path):
    with serving(tmp_path, BUDGET) as daemon, training(images, daemon.socket) as first:
        assert first.plan() == {}, "before it is iterated"
        draw(first, lambda: decisions(first))
        plan = first.plan()
        assert plan["machine"]["cores"] > 0 and len(plan["streams"]) == 1
        assert plan["streams"][0][1]["decode_s"] > 0
        made = plan["decisions"][0]
        assert made["moved"] and made["after"] >= made["before"] and made["binds"]
        assert made["streams"][0]["decoded"] > 0

        asked = subprocess.run(
            [program(), "plan", "--socket", daemon.socket, "--what-if", "memory=1GB", "--json"],
            capture_output=True,
            check=True,
        )
        told = json.loads(asked.stdout)
        splits = [one["plan"]["splits"][0] for one in (told["before"], told)]
        assert splits[0]["decoded"] < splits[1]["decoded"], "there is room for all now"
        assert "memory" not in told["plan"]["binds"]
        status = subprocess.run(
            [program(), "status", "--socket", daemon.socket], capture_output=True, check=True, text=True
        )
        assert "bound by" in status.stdout

        with training(images, daemon.socket, seed=1) as second:
            other = threading.Thread(target=draw, args=(first, lambda: said(first, "joined")))
            other.start()
            draw(second, lambda: said(second, "joined"))
            other.join()
        until(lambda: draw(first, lambda: True) or said(first, "left"))


def said(loader, what):
    return any(what in decision["reason"] for decision in decisions(loader))


def test_a_process_plans_too(images):
    script = """
import sys, forebay
from torchvision import transforms
forebay.configure(memory=sys.argv[2])
steps = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()])
with forebay.DataLoader(sys.argv[1], batch_size=8, shuffle=True, transform=steps) as loader:
    for epoch in range(500):
        for _ in loader:
            pass
        if loader.plan()["decisions"]:
            print(loader.plan()["decisions"][0]["reason"])
            break
"""
    done = subprocess.run(
        [sys.executable, "-c", script, images, BUDGET], capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.strip()


def test_no_plan_is_told_with_its_cure(tmp_path):
    nobody = subprocess.run(
        [program(), "plan", "--socket", tmp_path / "none"], capture_output=True, text=True
    )
    assert nobody.returncode == 2 and "forebay profile" in nobody.stderr
    with serving(tmp_path) as daemon:
        early = subprocess.run([program(), "plan", "--socket", daemon.socket], capture_output=True, text=True)
        assert early.returncode == 2 and "measured nothing" in early.stderr


def test_decoded_data_is_shared_by_jobs_with_other_random_steps(images, tmp_path):
    """Each gets every sample once and copies of its own; what is decoded is decoded for both."""
    from torchvision import transforms as v1

    with serving(tmp_path, "512MB", 2, "--cache", "off") as daemon:
        share = {"share": daemon.socket, "order": "ready", "level": "decoded", "mixing": 0}
        other = [v1.RandomCrop(16), v1.ToTensor()]
        jobs = [
            runs.Recording(images, batch_size=8, shuffle=True, transform=steps, **share)
            for steps in (runs.CROP, other)
        ]
        running = [iter(job) for job in jobs]
        seen = [set(), set()]
        for _ in range(COUNT // 8):
            for job, iterator, samples in zip(jobs, running, seen, strict=True):
                next(iterator)
                samples.update(job.native.samples)
        decodes = sum(job.metrics()["decodes"] for job in jobs)
        received = sum(map(len, seen))
        assert received == 2 * (COUNT // 8) * 8, "nothing twice"
        assert decodes <= 0.75 * received, "most are decoded for both"
        for job in jobs:
            job.close()


READS = """
import sys, forebay
from torchvision import transforms
forebay.configure(memory="12MB", threads=2, cache=sys.argv[2])
steps = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()])
with forebay.DataLoader(sys.argv[1], batch_size=8, shuffle=True, transform=steps) as loader:
    for epoch in range(30):
        for _ in loader:
            pass
        if epoch == 19:
            before = loader.metrics()["device_reads"]
    print(loader.metrics()["device_reads"] - before, len(loader.plan()["decisions"]))
"""


def test_one_job_reads_its_device_no_more_than_a_cache_of_files_does(images, tmp_path):
    """Though decoding is what takes time: a throttle that is fast makes every read one of a device."""
    device = tmp_path / "device"
    make = [program(), "bench", "throttle", "--device", "bandwidth=10GB/s", "--make", device]
    subprocess.run(make, check=True, capture_output=True)
    told = {}
    for mode in ("auto", "encoded"):
        done = subprocess.run(
            [sys.executable, "-c", READS, images, mode],
            env={**os.environ, "FOREBAY_THROTTLE": str(device)},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert (done.returncode, done.stderr) == (0, "")
        told[mode] = [int(number) for number in done.stdout.split()]
    assert told["auto"][1] > 0 and told["encoded"][1] == 0, "one of them plans"
    assert told["auto"][0] <= told["encoded"][0], told
