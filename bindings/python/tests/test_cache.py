"""Guards what is kept in memory, as a user meets it: validation, transforms that differ, settings."""

import json
import threading
import time

import forebay
import pictures
import pytest
import runs
import torch
from children import run
from daemons import serving, until
from forebay.errors import SampleChangedError
from torchvision import transforms as v1

CHECK = [v1.Resize(24), v1.CenterCrop(16), v1.ToTensor()]


@pytest.fixture
def cache():
    """Sets what is kept for one test; every loader before it must be closed."""
    yield lambda mode: forebay.configure(cache=mode)
    forebay.configure(cache="auto")


@pytest.fixture(params=["process", "daemon"])
def share(request, tmp_path):
    if request.param == "process":
        yield "process"
        return
    with serving(tmp_path) as daemon:
        yield daemon.socket


def grown(loader, before):
    """How the counters have grown."""
    return {name: value - before[name] for name, value in loader.metrics().items() if name in before}


def is_ahead(loader, samples):
    """Whether so many more samples are prepared than the loop has received."""
    counts = loader.metrics()
    return counts["preparations"] >= counts["deliveries"] + samples


def test_a_second_validation_prepares_nothing_and_training_goes_on_at_once(small, share):
    training = runs.Recording(small, batch_size=8, shuffle=True, transform=runs.CROP, share=share)
    check = runs.Recording(small, batch_size=10, transform=CHECK, share=share)
    with training, check:
        running = iter(training)
        for number in range(3):
            next(running)
            before = check.metrics()
            assert sum(len(batch.samples) for batch in runs.epoch(check)) == 97
            if number:
                made = grown(check, before)
                assert (made["preparations"], made["decodes"], made["reads"]) == (0, 0, 0)
                assert made["decoded_hits"] > 0
            # Training asks for nothing meanwhile, and what it needs next is made all the same.
            until(lambda: is_ahead(training, 8))
            next(running)
        assert training.metrics()["decodes"] + check.metrics()["decodes"] == 97, "one decode for both"


def test_a_validation_loader_made_anew_finds_what_the_last_one_left(small):
    """As long as some loader is there; a daemon keeps it for ever."""
    with runs.loader(small, batch_size=8, shuffle=True) as training:
        running = iter(training)
        next(running)
        for number in range(2):
            with runs.loader(small, batch_size=10, transform=CHECK) as check:
                runs.epoch(check)
                assert (check.metrics()["preparations"] == 0) == (number > 0)


@pytest.mark.parametrize("mode", ["auto", "off", "encoded", "decoded"])
def test_pixels_are_the_same_whatever_is_kept(small, cache, mode):
    with runs.loader(small, batch_size=9, shuffle=True) as loader:
        expect = [runs.epoch(loader) for _ in range(2)]
    cache(mode)
    with runs.loader(small, batch_size=9, shuffle=True) as loader:
        assert [runs.epoch(loader) for _ in range(2)] == expect
        counts = loader.metrics()
    assert (counts["decoded_bytes"] > 0) == (mode in ("auto", "decoded"))
    assert (counts["encoded_bytes"] > 0) == (mode == "encoded")
    assert (counts["reads"] > 97) == (mode == "off") and (counts["decodes"] > 97) == (
        mode in ("off", "encoded")
    )


def test_two_transforms_share_every_decode(small, share):
    jitter = [*runs.CROP, v1.ColorJitter(0.3)]
    loaders = [
        runs.Recording(small, batch_size=8, shuffle=True, transform=transform, share=share)
        for transform in (runs.CROP, jitter)
    ]
    loops = [threading.Thread(target=runs.epoch, args=(loader,)) for loader in loaders]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    counts = [loader.metrics() for loader in loaders]
    for loader in loaders:
        loader.close()
    assert sum(one["deliveries"] for one in counts) == 2 * 97
    assert sum(one["decodes"] for one in counts) == 97, "0.5 decodes per delivery"


def test_loops_with_copies_of_their_own_share_what_is_decoded(small):
    options = dict(batch_size=8, shuffle=True, share="process", level="decoded")
    with runs.loader(small, seed=1, **options) as a, runs.loader(small, seed=2, **options) as b:
        first, second = (runs.by_position(runs.epoch(loader)) for loader in (a, b))
        assert a.metrics()["decodes"] + b.metrics()["decodes"] == 97
        assert b.metrics()["preparations"] >= 97
    pixels = {sample: image for sample, image in first.values()}
    assert not all(torch.equal(image, pixels[sample]) for sample, image in second.values())


def test_all_of_it_goes_with_the_last_loader(small):
    with runs.loader(small, batch_size=8, shuffle=True) as loader:
        runs.epoch(loader)
        assert loader.metrics()["decoded_bytes"] > 97 * 48 * 36 * 3 // 2
    with runs.loader(small, batch_size=8, shuffle=True) as loader:
        next(iter(loader))
        assert loader.metrics()["decodes"] > 0


def test_a_daemon_keeps_it_for_jobs_to_come(small, tmp_path):
    with serving(tmp_path) as daemon:
        for number in range(2):
            with runs.loader(small, batch_size=8, shuffle=True, share=daemon.socket) as loader:
                runs.epoch(loader)
                assert (loader.metrics()["decodes"] == 0) == (number > 0)
        status = daemon.status()
        assert status["jobs"] == [] and status["decoded_bytes"] > 97 * 48 * 36 * 3 // 2
        assert status["bytes"] <= status["budget_bytes"]


def test_a_file_that_changed_is_noticed_by_the_next_job(tmp_path):
    (tmp_path / "data").mkdir()
    root = pictures.folder(tmp_path / "data", 12, classes=1, size=(40, 40))
    time.sleep(0.1)  # an index of a folder that has just changed is not trusted
    with serving(tmp_path) as daemon:
        options = dict(batch_size=12, transform=CHECK, share=daemon.socket)
        with runs.loader(root, **options) as loader:
            before = runs.epoch(loader)
        file = root / "class0" / "0003.jpg"
        other = (root / "class0" / "0007.jpg").read_bytes()
        size = len(file.read_bytes())
        # As many bytes, and the folder's own time stays.
        file.write_bytes(
            other[:-2] + b"\0" * (size - len(other)) + other[-2:] if size >= len(other) else other
        )
        with runs.loader(root, **options) as loader, pytest.raises(SampleChangedError, match="0003"):
            runs.epoch(loader)
        with runs.loader(root, **options) as loader:
            after = runs.epoch(loader)
        assert torch.equal(after[0].images[7], before[0].images[7])
        assert torch.equal(after[0].images[3], after[0].images[7])


def test_wrong_settings_are_named(small):
    with pytest.raises(ValueError, match="auto, off, encoded or decoded"):
        forebay.configure(cache="everything")
    out = run(
        """
        try: next(iter(make()))
        except ValueError as problem: print(problem)
        """,
        small,
        FOREBAY_CACHE="all",
    )
    assert "auto, off, encoded or decoded" in out


def test_what_is_kept_leaves_room_for_jobs(small, cache):
    """A budget that holds all images decoded, until a second loader needs some of it."""
    memory, threads = forebay.config()
    forebay.configure(memory="4MB", threads=2)
    try:
        options = dict(shuffle=True, output="uint8")
        with runs.loader(small, batch_size=8, **options) as loader:
            runs.epoch(loader)
            before = loader.metrics()["decoded_bytes"]
            big = [v1.RandomResizedCrop(64)]
            with runs.loader(small, batch_size=40, transform=big, **options) as other:
                assert sum(len(b.samples) for b in runs.epoch(other)) == 97
                counts = other.metrics()
            runs.epoch(loader)
        assert before > 0 and counts["peak_bytes"] <= 4_000_000
        assert json.dumps(counts)
    finally:
        forebay.configure(memory=memory, threads=threads)
