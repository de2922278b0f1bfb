"""Guards order logs: what a job received is given again, bit for bit, though it ran beside others."""

import json
import signal
import subprocess
import threading

import forebay
import pictures
import pytest
import runs
from children import start
from daemons import program, serving
from forebay.errors import InvalidError, StorageError, VersionError
from torchvision import transforms as v1

OPTIONS = dict(batch_size=7, shuffle=True)


def replayed(root, path, epochs, **options):
    with runs.loader(root, replay=path, **OPTIONS, **options) as loader:
        return [runs.epoch(loader) for _ in range(epochs)]


def pixels(epochs):
    return [[(b.samples, b.valid, b.images.tolist(), b.targets.tolist()) for b in e] for e in epochs]


def cli(*arguments):
    return subprocess.run([program(), "log", *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


@pytest.mark.parametrize("order", ["strict", 20, "ready"])
@pytest.mark.parametrize("where", ["process", "daemon"])
def test_a_job_that_ran_with_three_others_is_repeated_bit_for_bit(small, daemon, tmp_path, order, where):
    share = "process" if where == "process" else daemon.socket
    path = tmp_path / "job.log"
    jobs = [
        runs.Recording(small, transform=runs.CROP, share=share, order=order, seed=at % 2, log=log, **OPTIONS)
        for at, log in enumerate([None, path, None, None])
    ]
    seen = {}

    def train(at):
        seen[at] = [runs.epoch(jobs[at]) for _ in range(3)]

    loops = [threading.Thread(target=train, args=(at,)) for at in range(4)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    for job in jobs:
        job.close()
    assert pixels(replayed(small, path, 3)) == pixels(seen[1])
    # With another number of threads and nothing kept it is the same.
    assert pixels(replayed(small, path, 1, seed=99)) == pixels(seen[1][:1])


def test_a_log_goes_on_after_a_resume_and_drops_what_did_not_count(small, tmp_path):
    path = tmp_path / "job.log"
    options = dict(share="process", log=path, **OPTIONS)
    with runs.loader(small, **options) as loader:
        first = runs.epoch(loader)
        running = iter(loader)
        for _ in range(3):
            next(running)
        state = json.loads(json.dumps(loader.state_dict()))
        for _ in range(2):  # received after the state, and lost
            next(running)
    with runs.loader(small, **options) as loader:
        loader.load_state_dict(state)
        rest = runs.epoch(loader)
        third = runs.epoch(loader)
    again = replayed(small, path, 3)
    assert pixels([again[0], again[2]]) == pixels([first, third])
    assert pixels([again[1][3:]]) == pixels([rest])
    assert sorted(s for b in again[1] for s in b.samples) == list(range(97))


def test_a_replay_resumes_and_knows_its_length(small, tmp_path):
    path = tmp_path / "job.log"
    with runs.loader(small, log=path, **OPTIONS) as loader:
        [runs.epoch(loader) for _ in range(2)]
    with runs.loader(small, replay=path, **OPTIONS) as loader:
        assert len(loader) == 14
        second = [runs.epoch(loader) for _ in range(2)][1]
        with pytest.raises(InvalidError, match="no epoch 2; it has 0, 1"):
            iter(loader)
    with runs.loader(small, replay=path, **OPTIONS) as loader:
        loader.set_epoch(1)
        runs.epoch(loader, 5)
        state = loader.state_dict()
    with runs.loader(small, replay=path, **OPTIONS) as loader:
        loader.load_state_dict(state)
        assert pixels([runs.epoch(loader)]) == pixels([second[5:]])


def test_what_stood_in_for_a_bad_sample_is_repeated_with_its_mark(tmp_path):
    (tmp_path / "data").mkdir()
    root = pictures.folder(tmp_path / "data", 20, classes=2, size=(32, 32))
    bad = sorted(root.rglob("*.jpg"))[4]
    bad.write_bytes(b"\xff\xd8\xff\xe0 not a picture")
    path = tmp_path / "job.log"
    warned = pytest.warns(UserWarning, match="replaced by a neighbour")
    with runs.loader(root, log=path, on_error="substitute", **OPTIONS) as loader, warned:
        seen = runs.epoch(loader)
    assert [all(b.valid) for b in seen].count(False) == 1
    assert pixels(replayed(root, path, 1)) == pixels([seen])


@pytest.mark.parametrize("remainder", ["uneven", "pad"])
def test_each_rank_has_its_log_with_empty_batches_and_padding(small, tmp_path, remainder):
    dataset = forebay.ImageFolder(small).subset(range(9))
    options = dict(batch_size=2, shuffle=True, world_size=4, remainder=remainder, share=False)
    for rank in range(4):
        with runs.loader(dataset, rank=rank, log=tmp_path / "job.log", **options) as loader:
            seen = [runs.epoch(loader) for _ in range(2)]
        with runs.loader(dataset, rank=rank, replay=tmp_path / "job.log", **options) as loader:
            assert len(loader) == 2
            assert pixels([runs.epoch(loader) for _ in range(2)]) == pixels(seen)
    assert {path.name for path in tmp_path.iterdir()} == {f"job.log.rank{rank}" for rank in range(4)}


def test_a_log_survives_a_kill(small, tmp_path):
    path = tmp_path / "job.log"
    child = start(
        f"""
        loader = make(log={str(path)!r}, share="process")
        for epoch in range(1000):
            for _ in loader: print("batch", flush=True)
        """,
        small,
    )
    for _ in range(30):
        assert child.stdout.readline() == "batch\n"
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=30)
    child.stdout.close()
    shown = json.loads(cli("show", path, "--json").stdout)
    assert sum(epoch["batches"] for epoch in shown["epochs"]) >= 30
    with open(path, "ab") as log:
        log.write(b'{"epoch": 9, "st')  # half a line
    options = dict(batch_size=8, shuffle=True, share="process")
    crop = [
        {"op": "random_resized_crop", "height": 16, "width": 16, "scale": [0.08, 1], "ratio": [0.75, 1.33]}
    ]
    with runs.loader(small, transform=crop, log=path, **options) as loader:
        loader.set_epoch(50)
        seen = runs.epoch(loader)
    with runs.loader(small, transform=crop, replay=path, **options) as loader:
        loader.set_epoch(50)
        assert pixels([runs.epoch(loader)]) == pixels([seen])


def test_the_program_shows_and_compares_logs(small, tmp_path):
    paths = [tmp_path / name for name in ("a.log", "b.log", "c.log")]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        with runs.loader(small, log=path, seed=seed, **OPTIONS) as loader:
            [runs.epoch(loader) for _ in range(2)]
    shown = json.loads(cli("show", paths[0], "--json").stdout)
    assert [(e["epoch"], e["batches"], e["distinct"]) for e in shown["epochs"]] == [(0, 14, 97), (1, 14, 97)]
    assert cli("diff", paths[0], paths[1]).returncode == 0
    different = cli("diff", paths[0], paths[2])
    assert different.returncode == 1 and "epoch 0" in different.stdout
    assert cli("show", small / "nothing").returncode == 2


def test_other_files_are_refused(small, tmp_path):
    path = tmp_path / "job.log"
    with runs.loader(small, log=path, **OPTIONS) as loader:
        runs.epoch(loader)
    with pytest.raises(InvalidError, match="log of another job: its recipe"):
        forebay.DataLoader(small, replay=path, transform=v1.CenterCrop(8))
    refused = pytest.raises(InvalidError, match="another job")
    with runs.loader(small, transform=v1.CenterCrop(8), log=path) as loader, refused:
        iter(loader)
    with pytest.raises(ValueError, match="mutually exclusive"):
        forebay.DataLoader(small, log=path, replay=path)
    with pytest.raises(StorageError, match="cannot be read"):
        forebay.DataLoader(small, replay=tmp_path / "nothing")
    lines = path.read_text().splitlines(keepends=True)
    for text, error, match in [
        ("nonsense", InvalidError, "not an order log"),
        (lines[0].replace('"forebay_log": 1', '"forebay_log": 2'), VersionError, "newer"),
        ("".join([lines[0], "nonsense\n"]), InvalidError, "line 2"),
        ("".join([*lines[:2], lines[3]]), InvalidError, "line 3: step 1 of epoch 0 is out of turn"),
    ]:
        path.write_text(text)
        with pytest.raises(error, match=match):
            forebay.DataLoader(small, replay=path, transform=runs.CROP)
