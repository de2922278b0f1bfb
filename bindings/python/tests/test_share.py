"""Guards sharing inside a process: one pool, every loader exactly once, states of one out of a group."""

import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import forebay
import pytest
import runs
import torch
from forebay.errors import InvalidError, SampleError
from torchvision import transforms as v1

SHARED = dict(batch_size=8, shuffle=True, share="process")


def samples(seen):
    return [sample for batch in seen for sample in batch.samples]


def rows(seen):
    return {
        (s, image.numpy().tobytes())
        for batch in seen
        for s, image in zip(batch.samples, batch.images, strict=True)
    }


def in_turn(loaders, epochs=1):
    """Epochs of several loaders, a batch of each in turn; what every loader saw, epoch by epoch."""
    seen = [[] for _ in loaders]
    for _ in range(epochs):
        iterators = [iter(loader) for loader in loaders]
        for one in seen:
            one.append([])
        while any(iterators):
            for at, iterator in enumerate(iterators):
                if iterator is not None:
                    try:
                        data = next(iterator)
                        seen[at][-1].append(runs.Seen(loaders[at].native, data))
                    except StopIteration:
                        iterators[at] = None
    return seen


def test_loaders_in_step_prepare_once_for_all(small):
    with (
        runs.loader(small, **SHARED) as a,
        runs.loader(small, **SHARED) as b,
        runs.loader(small, **SHARED) as c,
    ):
        seen = in_turn([a, b, c], epochs=3)
        prepared = sum(loader.metrics()["preparations"] for loader in (a, b, c))
        delivered = sum(loader.metrics()["deliveries"] for loader in (a, b, c))
        assert a.metrics()["stream_jobs"] == 3
    for epochs in seen:
        for epoch in epochs:
            assert sorted(samples(epoch)) == list(range(97))
    assert delivered == 3 * 3 * 97
    # A third, and what run ahead made for epochs that do not come.
    assert prepared < 0.5 * delivered
    first, second = rows(seen[0][0]), rows(seen[0][1])
    assert not first & second, "another epoch brings other copies"
    assert len(first & rows(seen[1][0])) > 48, "the same copies go to every loader"


def test_threads_of_other_speed_and_batch_size_get_everything_once(small):
    found = {}

    def train(name, batch_size, epochs):
        with runs.loader(small, batch_size=batch_size, shuffle=True, share="process", seed=name) as loader:
            found[name] = [samples(runs.epoch(loader)) for _ in range(epochs)]

    workers = [
        threading.Thread(target=train, args=(n, b, e)) for n, (b, e) in enumerate([(3, 4), (10, 2), (32, 6)])
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert {name: len(epochs) for name, epochs in found.items()} == {0: 4, 1: 2, 2: 6}
    for epochs in found.values():
        assert all(sorted(epoch) == list(range(97)) for epoch in epochs)


def test_strict_order_is_bit_equal_alone_and_shared(small):
    options = dict(batch_size=8, shuffle=True, seed=3, order="strict")
    alone = runs.run(small, **options)
    with runs.loader(small, share="process", **options) as one, runs.loader(small, **SHARED) as other:
        seen, _ = in_turn([one, other])
    assert seen[0] == alone


def test_late_order_keeps_its_promise_beside_others(small):
    with runs.loader(small, order=20, **SHARED) as one, runs.loader(small, **SHARED) as other:
        in_turn([other])
        seen, _ = in_turn([one, other], epochs=2)
    for epoch in seen:
        order = [position for batch in epoch for position in batch.positions]
        assert sorted(order) == list(range(97))
        assert all(index <= position + 20 for index, position in enumerate(order))


def test_validation_beside_training_is_a_job_of_its_own(small):
    still = [v1.Resize((16, 16))]
    plain = runs.run(small, transform=still, batch_size=10)
    with (
        runs.loader(small, **SHARED) as train,
        runs.loader(small, transform=still, batch_size=10, share="process") as check,
    ):
        for _ in range(2):
            assert sorted(samples(runs.epoch(train))) == list(range(97))
            assert runs.epoch(check) == plain
        assert train.metrics()["stream_jobs"] == check.metrics()["stream_jobs"] == 1
        assert train.metrics()["peak_bytes"] <= train.metrics()["budget_bytes"]


@pytest.mark.parametrize("order", ["ready", 12, "strict"])
@pytest.mark.parametrize("step", [0, 1, 5, 12])
def test_a_state_of_one_out_of_a_group_gives_exactly_the_rest(small, order, step):
    with runs.loader(small, **SHARED) as other:
        turn = iter(other)
        next(turn)
        with runs.loader(small, order=order, **SHARED) as one:
            before = runs.epoch(one, step)
            state = json.loads(json.dumps(one.state_dict()))
        next(turn)
        with runs.loader(small, order=order, **SHARED) as one:
            one.load_state_dict(state)
            after = runs.epoch(one)
            assert sorted(samples(runs.epoch(one))) == list(range(97)), "the next epoch is whole"
    assert sorted(samples(before) + samples(after)) == list(range(97))
    assert not rows(before) & rows(after)


def test_a_state_goes_on_alone_in_another_process_and_after_pickling(small):
    with runs.loader(small, **SHARED) as one:
        before = runs.epoch(one, 4)
        del one.native
        state, copy = one.state_dict(), pickle.loads(pickle.dumps(one))
    forebay._native.shutdown()  # another opening of the stream
    with runs.loader(small, **SHARED) as one:
        one.load_state_dict(state)
        after = runs.epoch(one)
    with runs.contextlib.closing(copy):
        again = runs.epoch(copy)
    for rest in (after, again):
        assert sorted(samples(before) + samples(rest)) == list(range(97))


@pytest.mark.parametrize("options", [{}, {"order": 3}, {"share": "process", "order": "strict"}])
@pytest.mark.parametrize("step", [1, 5, 11])
def test_a_state_of_ready_order_goes_on_in_any_order(small, options, step):
    with runs.loader(small, **SHARED) as one:
        before = runs.epoch(one, step)
        state = json.loads(json.dumps(one.state_dict()))
    with runs.loader(small, batch_size=8, shuffle=True, **options) as one:
        one.load_state_dict(state)
        after = runs.epoch(one)
    assert sorted(samples(before) + samples(after)) == list(range(97))


def test_an_epoch_left_early_costs_nothing_and_the_next_is_whole(small):
    with runs.loader(small, **SHARED) as one, runs.loader(small, **SHARED) as other:
        for _ in range(3):
            runs.epoch(one, 2)
            assert sorted(samples(runs.epoch(other))) == list(range(97))
        assert sorted(samples(runs.epoch(one))) == list(range(97))


def test_copies_of_its_own_are_nobody_elses(small):
    with runs.loader(small, level="decoded", **SHARED) as one, runs.loader(small, **SHARED) as other:
        mine, theirs = in_turn([one, other])
    assert not rows(mine[0]) & rows(theirs[0])
    assert sorted(samples(mine[0])) == list(range(97))


def test_other_finishes_share_copies(small):
    floats = [*runs.CROP, v1.ToTensor()]
    with runs.loader(small, **SHARED) as a, runs.loader(small, transform=floats, **SHARED) as b:
        first, second = in_turn([a, b])
        assert a.metrics()["stream_jobs"] == 2
    bytes_of = {row[0]: row[1] for row in rows(first[0])}
    same = 0
    for batch in second[0]:
        assert batch.images.dtype == torch.float32
        for sample, image in zip(batch.samples, batch.images, strict=True):
            same += bytes_of[sample] == (image * 255).round().to(torch.uint8).numpy().tobytes()
    assert same > 48


def test_bad_files_are_skipped_for_all_and_stay_in_the_state(tmp_path, small):
    import pictures

    root = pictures.folder(tmp_path, 30, classes=2, size=(20, 16))
    bad = sorted(root.rglob("*.jpg"))[7]
    bad.write_bytes(b"not a picture")
    with runs.loader(root, on_error="skip", **SHARED) as a, runs.loader(root, on_error="skip", **SHARED) as b:
        with pytest.warns(UserWarning, match="1 samples failed"):
            first, second = in_turn([a, b])
        assert len(samples(first[0])) == len(samples(second[0])) == 29
        assert [f["path"] for f in a.quarantine] == [f["path"] for f in b.quarantine] == [str(bad)]
        state = json.loads(json.dumps(a.state_dict()))
    with runs.loader(root, on_error="skip", **SHARED) as a:
        a.load_state_dict(state)
        assert len(samples(runs.epoch(a))) == 29
        assert a.metrics()["failures"] == 0, "it is not tried again"
    with runs.loader(root, **SHARED) as a, pytest.raises(SampleError, match=bad.name):
        runs.epoch(a)


def test_what_cannot_be_shared_says_so(small):
    repeated = forebay.DataLoader(small, sampler=[3, 3, 5], share="process", transform=runs.CROP)
    assert "copies of their own" in repeated.explain()
    varied = forebay.DataLoader(small, shuffle=True, share="process", collate_fn=len)
    assert "size of augmented images varies" in varied.explain()
    assert sum(varied) == 97
    varied.close()
    shared = forebay.DataLoader(small, transform=runs.CROP, **SHARED)
    assert "copies with all loaders" in shared.explain() and "order ready" in shared.explain()
    assert "share=True shares copies" in forebay.DataLoader(small, share=False).explain()


def test_wrong_arguments_are_named(small):
    for options, message in [
        (dict(share="somewhere"), "share should be"),
        (dict(level="finished"), "level should be"),
        (dict(mixing=1.5), "between 0 and 1"),
        (dict(order="ready", shuffle=True), "pass share=True or 'process'"),
        (dict(order="ready", share="process"), "needs shuffle=True"),
        (dict(order="sorted", share="process"), "order should be"),
    ]:
        with pytest.raises(ValueError, match=message):
            forebay.DataLoader(small, **options)
    unshuffled = forebay.DataLoader(small, share="process")
    assert (unshuffled.order, forebay.DataLoader(small, **SHARED).order) == ("strict", "ready")


def test_a_damaged_state_is_refused(small):
    with runs.loader(small, **SHARED) as one:
        runs.epoch(one, 3)
        state = one.state_dict()
        for key, value in [
            ("stream", "x"),
            ("stream", [1]),
            ("stream", [-1, 0]),
            ("quarantine", [[10**9, "x", "read", "y"]]),
            ("received", {"base": 98}),
        ]:
            with pytest.raises(InvalidError):
                one.load_state_dict({**state, key: value})
        received = {**state["received"], "beyond": [200]}
        with pytest.raises(InvalidError):
            one.load_state_dict({**state, "received": received})
        one.load_state_dict({key: value for key, value in state.items() if key != "stream"} | {"version": 1})


def test_the_example_runs_and_shows_what_sharing_saves(small):
    script = Path(__file__).parents[3] / "examples" / "share.py"
    done = subprocess.run(
        [sys.executable, script, small, "2", "1"], capture_output=True, text=True, timeout=120, check=True
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["apart", "shared", "ratio"]
    assert float(lines[0][3]) > 0.99
    assert float(lines[1][3]) < 0.9


def test_the_65th_loader_is_refused_by_name(small):
    loaders = [
        forebay.DataLoader(small, transform=runs.CROP, batch_size=1, shuffle=True, share="process")
        for _ in range(65)
    ]
    try:
        for loader in loaders[:64]:
            next(iter(loader))
        with pytest.raises(InvalidError, match="64 jobs at most"):
            next(iter(loaders[64]))
        loaders[0].close()
        next(iter(loaders[64]))
    finally:
        for loader in loaders:
            loader.close()
