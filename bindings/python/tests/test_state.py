"""Guards resume: a state taken at any step, loaded anywhere, goes on exactly after what was received."""

import copy
import json

import forebay
import pictures
import pytest
import runs
import torch
from amounts import amount
from forebay.errors import ForebayError, InvalidError, SampleError, VersionError
from torch.utils.data import BatchSampler, RandomSampler

STEPS = range(13) if amount(0, 1) else (0, 1, 6, 11, 12)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return pictures.folder(tmp_path_factory.mktemp("state"), 97, classes=3, size=(20, 16))


def through_json(state):
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("epoch", [0, 3])
def test_strict_resume_at_a_step_is_bit_equal_to_the_uninterrupted_run(root, threads, step, epoch):
    options = dict(batch_size=8, shuffle=True, seed=5)
    with runs.loader(root, **options) as loader:
        loader.set_epoch(epoch)
        whole = runs.epoch(loader)
        after = runs.epoch(loader)
    assert len(whole) == 13
    with runs.loader(root, **options) as loader:
        loader.set_epoch(epoch)
        runs.epoch(loader, step)
        state = through_json(loader.state_dict())
    threads(1 + step % 4)
    with runs.loader(root, **options) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state, "loading and saving again changes nothing"
        assert runs.epoch(loader) == whole[step:]
        assert runs.epoch(loader) == after


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("late", [5, 40])
def test_resume_with_slack_brings_the_rest_of_the_set(root, threads, step, late):
    options = dict(batch_size=8, shuffle=True, seed=5, order=late)
    whole = runs.by_position(runs.run(root, batch_size=8, shuffle=True, seed=5))
    with runs.loader(root, **options) as loader:
        before = runs.epoch(loader, step)
        state = through_json(loader.state_dict())
    threads(1 + step % 4)
    with runs.loader(root, **options) as loader:
        loader.load_state_dict(state)
        rest = runs.epoch(loader)
    assert runs.same_pixels(runs.by_position(before + rest), whole)


@pytest.mark.parametrize("size", [1, 5, 64])
@pytest.mark.parametrize("late", [0, 16])
def test_resume_with_another_batch_size_brings_the_rest(root, size, late):
    whole = runs.by_position(runs.run(root, batch_size=8, shuffle=True, seed=5))
    with runs.loader(root, batch_size=8, shuffle=True, seed=5, order=late) as loader:
        before = runs.epoch(loader, 4)
        state = loader.state_dict()
    with runs.loader(root, batch_size=size, shuffle=True, seed=5, order=late) as loader:
        loader.load_state_dict(state)
        rest = runs.epoch(loader)
    assert runs.same_pixels(runs.by_position(before + rest), whole)


@pytest.mark.parametrize("step", STEPS)
def test_resume_with_drop_last_ends_where_the_epoch_would_have(root, step):
    options = dict(batch_size=8, shuffle=True, seed=5, drop_last=True)
    whole = runs.run(root, **options)
    assert len(whole) == 12
    with runs.loader(root, **options) as loader:
        runs.epoch(loader, step)
        state = loader.state_dict()
    with runs.loader(root, **options) as loader:
        loader.load_state_dict(state)
        assert runs.epoch(loader) == whole[step:]


def test_the_state_says_what_was_received_not_what_was_prepared(root):
    with runs.loader(root, batch_size=8, shuffle=True, order=16) as loader:
        for step, _ in enumerate(loader, 1):
            received = loader.state_dict()["received"]
            assert received["base"] + len(received["beyond"]) == 8 * step
            if step == 3:
                break


def test_a_state_taken_earlier_does_not_move_on(root):
    with runs.loader(root, batch_size=8) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        kept = copy.deepcopy(state)
        next(iterator)
        assert state == kept != loader.state_dict()


def test_states_before_iterating_and_at_the_end_begin_an_epoch(root):
    options = dict(batch_size=8, shuffle=True, seed=2)
    with runs.loader(root, **options) as loader:
        fresh = loader.state_dict()
        first = runs.epoch(loader)
        ended = loader.state_dict()
        second = runs.epoch(loader)
    for state, want in ((fresh, first), (ended, second)):
        with runs.loader(root, **options) as loader:
            loader.load_state_dict(through_json(state))
            assert runs.epoch(loader) == want


def test_a_state_taken_after_the_last_batch_leaves_nothing_of_that_epoch(root):
    options = dict(batch_size=8, shuffle=True, seed=2)
    with runs.loader(root, **options) as loader:
        whole = runs.epoch(loader, 13)
        state = loader.state_dict()
        assert len(whole) == 13 and state["epoch"] == 0
    with runs.loader(root, **options) as loader:
        loader.load_state_dict(state)
        assert runs.epoch(loader) == []
        assert len(runs.epoch(loader)) == 13


def test_loading_into_a_running_loader_drops_what_was_prepared(root):
    with runs.loader(root, batch_size=8, shuffle=True, seed=2) as loader:
        whole = runs.epoch(loader, 2)
        state = loader.state_dict()
        iterator = iter(loader)
        next(iterator)
        loader.load_state_dict(state)
        with pytest.raises(ForebayError):
            next(iterator)
        rest = runs.epoch(loader)
    assert whole + rest == runs.run(root, batch_size=8, shuffle=True, seed=2)


def test_the_state_carries_the_seed(root):
    with runs.loader(root, batch_size=8, shuffle=True, seed=11) as loader:
        runs.epoch(loader, 5)
        state = loader.state_dict()
    with runs.loader(root, batch_size=8, shuffle=True) as loader:
        loader.load_state_dict(state)
        assert loader.seed == 11
        assert runs.epoch(loader) == runs.run(root, batch_size=8, shuffle=True, seed=11)[5:]


def test_a_state_after_an_exception_goes_on_after_the_last_batch_received(tmp_path):
    pictures.folder(tmp_path, 20, size=(20, 16))
    (tmp_path / "class0" / "0009.jpg").write_bytes(b"\xff\xd8 no image")
    with runs.loader(tmp_path, batch_size=4) as loader:
        seen = []
        with pytest.raises(SampleError):
            for data in loader:
                seen.append(runs.Seen(loader.native, data))
        state = loader.state_dict()
        assert len(seen) == 2 and state["received"]["base"] == 8
        # In the same loader, the bad one still bad.
        loader.load_state_dict(state)
        with pytest.raises(SampleError):
            runs.epoch(loader)
    with runs.loader(tmp_path, batch_size=4, on_error="skip") as loader:
        loader.load_state_dict(state)
        with pytest.warns(UserWarning, match="0009"):
            rest = runs.epoch(loader)
    assert [s for batch in rest for s in batch.samples] == [8, *range(10, 20)]


def test_quarantine_is_part_of_the_state(tmp_path):
    pictures.folder(tmp_path, 12, size=(20, 16))
    (tmp_path / "class0" / "0001.jpg").write_bytes(b"")
    with runs.loader(tmp_path, batch_size=4, on_error="skip") as loader:
        before = runs.epoch(loader, 1)
        state = through_json(loader.state_dict())
        assert [row["sample"] for row in loader.quarantine] == [1]
    with runs.loader(tmp_path, batch_size=4, on_error="skip") as loader:
        loader.load_state_dict(state)
        rest = runs.epoch(loader)
        assert [row["sample"] for row in loader.quarantine] == [1]
        assert loader.metrics()["failures"] == 0, "a quarantined sample is not tried again"
    assert [s for b in before + rest for s in b.samples] == [0, *range(2, 12)]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("step", [0, 1, 5])
def test_samplers_with_a_generator_resume_bit_equal(root, whole, step):
    def make():
        sampler = RandomSampler(range(97), generator=torch.Generator().manual_seed(1))
        if whole:
            return dict(batch_sampler=BatchSampler(sampler, 2, drop_last=False), timeout=5)
        return dict(sampler=sampler, batch_size=2, timeout=5)

    with runs.loader(root, **make()) as loader:
        runs.epoch(loader)
        second = runs.epoch(loader)
    with runs.loader(root, **make()) as loader:
        runs.epoch(loader)
        runs.epoch(loader, step)
        state = through_json(loader.state_dict())
    with runs.loader(root, **make()) as loader:
        loader.load_state_dict(state)
        assert runs.epoch(loader) == second[step:]


def test_repeats_before_the_resume_count(root):
    options = dict(batch_size=2, sampler=[7] * 8)
    whole = runs.run(root, **options)
    with runs.loader(root, **options) as loader:
        runs.epoch(loader, 2)
        state = loader.state_dict()
    with runs.loader(root, **options) as loader:
        loader.load_state_dict(state)
        assert runs.epoch(loader) == whole[2:]


def test_the_state_is_small(root):
    with runs.loader(root, batch_size=8, shuffle=True) as loader:
        runs.epoch(loader, 7)
        assert len(json.dumps(loader.state_dict())) < 1024


def state_of(root, **options):
    with runs.loader(root, batch_size=8, **options) as loader:
        runs.epoch(loader, 2)
        return loader.state_dict()


def test_a_state_of_another_dataset_is_refused(root, small):
    state = state_of(small)
    with runs.loader(root, batch_size=8) as loader, pytest.raises(InvalidError, match="another dataset"):
        loader.load_state_dict(state)


def test_a_state_of_another_order_is_refused(root):
    state = state_of(root, shuffle=True)
    with runs.loader(root, batch_size=8) as loader, pytest.raises(InvalidError, match="shuffle"):
        loader.load_state_dict(state)


def test_a_state_of_a_newer_version_is_refused(root):
    state = state_of(root) | {"version": 99}
    with runs.loader(root, batch_size=8) as loader, pytest.raises(VersionError, match="99"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    "damage",
    [
        {"version": None},
        {"received": {"base": 98, "skipped": 0, "beyond": []}},
        {"received": {"base": 10, "skipped": 11, "beyond": []}},
        {"received": {"base": 10, "skipped": 0, "beyond": [3]}},
        {"received": {"base": 10, "skipped": 0, "beyond": [97]}},
        {"received": {"base": -1, "skipped": 0, "beyond": []}},
        {"received": {"base": 1, "beyond": "x"}},
        {"received": None},
        {"received": {"base": 1, "skipped": 0, "beyond": [2**64 - 1]}},
        {"epoch": -1},
        {"epoch": "later"},
        {"seed": "x"},
        {"quarantine": [[1]]},
    ],
    ids=str,
)
def test_a_damaged_state_is_a_typed_error_and_leaves_the_loader_as_it_was(root, damage):
    state = state_of(root) | damage
    with runs.loader(root, batch_size=8) as loader:
        before = loader.state_dict()
        with pytest.raises((ForebayError, ValueError)):
            loader.load_state_dict(state)
        assert loader.state_dict() == before
        assert len(runs.epoch(loader)) == 13


@pytest.mark.parametrize("key", ["version", "dataset", "received", "epoch", "seed", "shuffle", "quarantine"])
def test_a_state_without_a_part_is_a_typed_error(root, key):
    state = state_of(root)
    del state[key]
    with runs.loader(root, batch_size=8) as loader, pytest.raises(ForebayError):
        loader.load_state_dict(state)


def test_something_else_is_not_a_state(root):
    with forebay.DataLoader(root) as loader, pytest.raises(InvalidError, match="not a state"):
        loader.load_state_dict({"model": 1})
