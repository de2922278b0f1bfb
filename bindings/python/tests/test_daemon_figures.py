"""Guards what sharing saves: a real daemon prepares as often as the simulator says it will."""

import json
import subprocess
import time

import pictures
import pytest
from amounts import amount
from children import start
from daemons import program, serving

SAMPLES = 4000
#: Epochs of the slowest job that are counted, after a first one that is not.
EPOCHS = 3
#: Samples per second of the slowest job.
PACE = 1000
#: Samples per second and start of each job.
SCENARIOS = {
    "4-staggered": [(PACE, at * SAMPLES / PACE / 4) for at in range(4)],
    "4-equal": [(PACE, 0)] * 4,
    "speeds": [(PACE, 0), (PACE, 0), (2 * PACE, 0), (4 * PACE, 0)],
    "3-to-1": [(3 * PACE, 0), (PACE, 0)],
}
#: A job that trains at a pace of its own, and the counters at the edges of a window.
JOB = """
import json
share, pace, begin, opens, closes = sys.argv[2], *map(float, sys.argv[3:])
loader = make(batch_size=64, share=share, mixing=0)
print("ready", flush=True)
start = float(input())
due, edges, seen = start + begin, [opens, closes], []
time.sleep(max(0, due - time.monotonic()))
while edges:
    for _, targets in loader:
        if time.monotonic() >= start + edges[0]:
            seen.append(loader.metrics())
            edges.pop(0)
            if not edges: break
        due += len(targets) / pace
        time.sleep(max(0, due - time.monotonic()))
counted = [seen[1][name] - seen[0][name] for name in ("preparations", "deliveries")]
print(json.dumps([*counted, seen[1]["pool_slots"]]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return pictures.folder(tmp_path_factory.mktemp("figures"), SAMPLES, classes=2, size=(24, 18))


@pytest.mark.parametrize("memory", ["3MB", "512MB"][: amount(1, 2)])
@pytest.mark.parametrize("name", list(SCENARIOS)[: amount(1, 4)])
def test_preparations_per_delivery_are_those_of_the_simulator(folder, tmp_path, name, memory):
    jobs = SCENARIOS[name]
    opens = max(begin for _, begin in jobs) + SAMPLES / PACE
    closes = opens + EPOCHS * SAMPLES / PACE
    # What is kept would change the size of the pool on the way.
    with serving(tmp_path, memory, 2, "--cache", "off") as daemon:
        running = [start(JOB, folder, daemon.socket, pace, begin, opens, closes) for pace, begin in jobs]
        try:
            assert all(job.stdout.readline() == "ready\n" for job in running)
            now = time.monotonic()
            for job in running:
                job.stdin.write(f"{now}\n")
                job.stdin.flush()
            seen = [json.loads(job.stdout.readline()) for job in running]
        finally:
            for job in running:
                job.kill()
    real = sum(preparations for preparations, _, _ in seen) / sum(deliveries for _, deliveries, _ in seen)
    slots = seen[0][2]
    assert real == pytest.approx(simulated(tmp_path, jobs, slots / SAMPLES), abs=0.02)


def simulated(folder, jobs, pool):
    head = f"samples = {SAMPLES}\npool = {pool}\nmixing = 0\nepochs = {EPOCHS + 1}\n"
    groups = [f"[[jobs]]\nspeed = {pace}\nstart = {begin}\n" for pace, begin in jobs]
    file = folder / "scenario.toml"
    file.write_text(head + "".join(groups))
    flags = ["--workers", "2", "--prepare", "0.0002", "--seeds", "5", "--json"]
    command = [program(), "simulate", file, *flags]
    results = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["results"]
    return next(one["median"] for one in results if one["metric"] == "preparations_per_delivery")
