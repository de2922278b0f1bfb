"""Guards resuming through real processes: killed after any step, gone on with by other ranks, in a group.

A job is stepped by commands, so that what every rank received is known exactly; then all its processes are
killed and as many others as the next world size says go on from a state.
"""

import contextlib
import itertools
import json
import signal

import forebay
import pictures
import pytest
from amounts import amount
from children import start
from daemons import serving

SAMPLES, BATCH = 50, 3
WORLDS = (2, 1, 4)
STEP = """
import hashlib, json

class Recording(forebay.DataLoader):
    def _receive(self, batch):
        super()._receive(batch)
        self.native = batch

options = json.loads(sys.argv[2])
loader = Recording(root, batch_size=int(sys.argv[3]), shuffle=True, transform=crop, seed=11, **options)
if sys.argv[4]:
    loader.load_state_dict(json.loads(sys.argv[4]))
running = iter(loader)
for line in sys.stdin:
    data = next(running, None)
    told = {"state": loader.state_dict()}
    if data is None:
        running = iter(loader)
    else:
        native = loader.native
        seed, generation, copies, occurrences = native.names()
        none = [0] * len(native)
        names = zip(native.samples, copies or none, occurrences or none)
        names = [[seed, sample, (generation + copy) % 2**64, often] for sample, copy, often in names]
        pixels = [hashlib.md5(image.tobytes()).hexdigest() for image in data[0]]
        told["rows"] = list(zip(native.samples, native.valid, names, pixels))
    print(json.dumps(told), flush=True)
"""
OTHERS = """
def train(batch):
    loader = make(share=sys.argv[2], batch_size=batch, seed=batch, order="ready")
    while True:
        for _ in loader: pass

for batch in (2, 5, 9):
    threading.Thread(target=train, args=(batch,), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return pictures.folder(tmp_path_factory.mktemp("data"), SAMPLES, classes=3, size=(64, 56))


@pytest.fixture(scope="module", params=[1, 8], ids=["1-thread", "8-threads"])
def daemon(request, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("daemon"), "512MB", request.param) as daemon:
        daemon.threads = request.param
        yield daemon


@contextlib.contextmanager
def others(root, daemon, wanted):
    """Three further jobs, if they are wanted."""
    if not wanted:
        yield
        return
    child = start(OTHERS, root, daemon.socket)
    try:
        assert child.stdout.readline() == "ready\n"
        yield
    finally:
        child.kill()
        child.communicate()


class Ranks:
    """The processes of a job."""

    def __init__(self, root, world_size, state, threads, **options):
        text = "" if state is None else json.dumps(state)
        self.children = [
            start(
                STEP,
                root,
                json.dumps(options | {"rank": rank, "world_size": world_size, "job": "tested"}),
                BATCH,
                text,
                FOREBAY_THREADS=threads,
            )
            for rank in range(world_size)
        ]

    def step(self):
        """What each rank received, and its state."""
        for child in self.children:
            child.stdin.write("next\n")
            child.stdin.flush()
        told = [json.loads(child.stdout.readline() or child.stderr.read()) for child in self.children]
        assert len({"rows" in one for one in told}) == 1, "ranks have equal steps"
        return told

    def kill(self):
        for child in self.children:
            child.send_signal(signal.SIGKILL)
        for child in self.children:
            child.communicate()


def ride(root, threads, every, merged, **options):
    """Two epochs, killed after every so many steps: the rows of each epoch, and the last state."""
    epochs, state, worlds, whose = [[], []], None, itertools.cycle(WORLDS), itertools.count()
    ranks = Ranks(root, next(worlds), None, threads, **options)
    steps = 0
    try:
        while True:
            epoch = 0 if state is None else state["epoch"]
            told = ranks.step()
            states = [one["state"] for one in told]
            # Any rank's state is the job's; with fixed shares, and not in strict order, all together are.
            state = forebay.merge_states(states) if merged else states[next(whose) % len(states)]
            for one in told:
                epochs[epoch].extend(one.get("rows", ()))
            if state["epoch"] == 2:
                return epochs, state
            steps += 1
            if steps % every == 0:
                ranks.kill()
                ranks = Ranks(root, next(worlds), state, threads, **options)
    finally:
        ranks.kill()


@pytest.fixture(scope="module")
def uninterrupted(root):
    """Name and pixels of every copy of two epochs of one process in strict order."""
    ranks = Ranks(root, 1, None, 2, share=False)
    try:
        told = [ranks.step()[0] for _ in range(2 * (-(-SAMPLES // BATCH) + 1))]
    finally:
        ranks.kill()
    rows = [row for one in told for row in one.get("rows", ())]
    assert len(rows) == 2 * SAMPLES
    return {tuple(name): pixels for _, _, name, pixels in rows}


@pytest.mark.parametrize("group", [False, True], ids=["alone", "in-a-group"])
@pytest.mark.parametrize("order", ["strict", 24, "ready"])
def test_any_ranks_go_on_exactly_where_others_were_killed(root, daemon, uninterrupted, order, group):
    fixed = not group and order != "ready"
    options = dict(order=order, share=False if fixed else daemon.socket)
    with others(root, daemon, group):
        merged = fixed and order != "strict"
        epochs, state = ride(root, daemon.threads, amount(3, 1), merged, **options)
    for rows in epochs:
        received = sorted(sample for sample, valid, _, _ in rows if valid)
        assert received == list(range(SAMPLES)), "every sample once"
    names = [tuple(name) for rows in epochs for _, valid, name, _ in rows if valid]
    assert len(set(names)) == len(names), "no copy twice"
    assert state["received"]["base"] == 0 and not state["received"]["beyond"], "the union is the epoch"
    if order == "strict":
        # Padding repeats samples in copies of their own; all others are those of the uninterrupted run.
        copies = {tuple(name): pixels for rows in epochs for _, valid, name, pixels in rows if valid}
        assert copies == uninterrupted


@pytest.mark.parametrize("order", ["strict", 24, "ready"])
def test_a_job_of_one_process_resumes_after_every_step(root, daemon, order):
    """Without a kill, but at every step: the rest of the two epochs is there, in strict order bit-equal."""
    options = dict(batch_size=7, shuffle=True, seed=3, order=order)
    options["share"] = daemon.socket if order == "ready" else False
    options["transform"] = [{"op": "center_crop", "height": 8, "width": 8}]

    def batches(loader, epochs):
        """(samples, pixels, state after it) of the epochs."""
        return [
            (samples, images.tobytes(), loader.state_dict())
            for _ in range(epochs)
            for images, samples in ((data[0].numpy(), data[1].tolist()) for data in loader)
        ]

    with forebay.DataLoader(root, **options) as loader:
        whole = batches(loader, 2)
    for at, (_, _, state) in enumerate(whole[:-1], 1):
        with forebay.DataLoader(root, **options) as loader:
            loader.load_state_dict(json.loads(json.dumps(state)))
            rest = batches(loader, 2 - state["epoch"])
        if order == "strict":
            assert [row[:2] for row in rest] == [row[:2] for row in whole[at:]]
        assert sum(len(row[0]) for row in rest) == sum(len(row[0]) for row in whole[at:])
