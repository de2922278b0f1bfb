"""Guards jobs of several ranks: equal steps, every sample once, exact evaluation, other ranks after it."""

import concurrent.futures
import itertools
import json
import re

import forebay
import pictures
import pytest
import runs
import torch
from children import printed, start
from daemons import serving
from forebay.errors import InvalidError, JobNameError
from torch.utils.data import DistributedSampler
from torchvision import transforms as v1

SIZES = [(97, 5), (96, 4), (16, 2), (15, 2), (17, 2), (3, 4), (8, 1)]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


def ranks(dataset, world_size, **options):
    """A loader for each rank."""
    options = dict(transform=runs.CROP, shuffle=True) | options
    return [runs.Recording(dataset, rank=r, world_size=world_size, **options) for r in range(world_size)]


def steps(loaders, most=None):
    """Steps of an epoch: what each rank got, all of them at a time."""
    running = [iter(loader) for loader in loaders]
    seen = []
    while len(seen) != most:
        step = []
        for one, loader in zip(running, loaders, strict=True):
            data = next(one, None)
            if data is not None:
                step.append(runs.Seen(loader.native, data))
        assert len(step) in (0, len(loaders)), f"{len(step)} of {len(loaders)} ranks have a step {len(seen)}"
        if not step:
            break
        seen.append(step)
    return seen


def valid(seen):
    """Samples that are more than padding."""
    batches = itertools.chain.from_iterable(seen)
    return [s for b in batches for s, mark in zip(b.samples, b.valid, strict=True) if mark]


def close(loaders):
    for loader in loaders:
        loader.close()


def share_of(daemon, where):
    return {"fixed": False, "ready": daemon.socket, "strict": daemon.socket}[where]


# -- steps and coverage -------------------------------------------------------------------------------


@pytest.mark.parametrize("remainder", ["pad", "drop", "uneven"])
@pytest.mark.parametrize("where", ["fixed", "strict", "ready"])
@pytest.mark.parametrize("n, batch", SIZES)
def test_eight_ranks_have_equal_steps_and_every_sample_once(small, daemon, where, remainder, n, batch):
    options = dict(batch_size=batch, remainder=remainder, share=share_of(daemon, where), seed=n)
    order = {} if where == "fixed" else {"order": where}
    loaders = ranks(forebay.ImageFolder(small).subset(range(n)), 8, **options, **order)
    for _ in range(2):
        seen = steps(loaders)
        assert [len(loader) for loader in loaders] == [len(seen)] * 8
        full, rest = divmod(n, 8 * batch)
        covered = sorted(valid(seen))
        assert len(set(covered)) == len(covered) == (full * 8 * batch if remainder == "drop" else n)
        for step in seen[:full]:
            assert [len(b.samples) for b in step] == [batch] * 8 and all(all(b.valid) for b in step)
        if rest and remainder != "drop":
            sizes = [len(b.samples) for b in seen[full]]
            assert max(sizes) - min(sizes) <= (remainder == "uneven") and len(seen) == full + 1
            assert sum(sizes) == (rest if remainder == "uneven" else -(-rest // 8) * 8)
            assert all(b.images.shape == (size, 3, 16, 16) for b, size in zip(seen[full], sizes, strict=True))
        if remainder == "drop" and where != "ready":
            # What is left out are the last positions of the order, also with another number of ranks.
            order_of_all = list(forebay.DataLoader(loaders[0].dataset, shuffle=True, seed=n).sampler)
            if loaders[0]._epoch == 1:
                assert covered == sorted(order_of_all[: full * 8 * batch])
    close(loaders)


@pytest.mark.parametrize("remainder", ["pad", "uneven"])
def test_an_evaluation_over_ranks_is_that_of_one_process(small, daemon, remainder):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 5)).double()
    options = dict(transform=[v1.CenterCrop(16)], shuffle=False, output="float32")

    def right(loader):
        """Number of samples that the model gets right, and of all."""
        total = torch.zeros(2, dtype=torch.int64)
        for images, targets in loader:
            hits = model(images.double()).argmax(1) == targets
            total += torch.tensor([(hits & loader.valid).sum(), loader.valid.sum()])
        return total

    with forebay.DataLoader(small, batch_size=8, **options) as loader:
        alone = right(loader)
    assert alone[1] == 97
    for share in (False, daemon.socket):
        loaders = ranks(small, 8, batch_size=5, remainder=remainder, share=share, **options)
        running = [threaded(right, loader) for loader in loaders]
        assert sum(one() for one in running).tolist() == alone.tolist()
        close(loaders)


def threaded(act, *arguments):
    """Runs `act` in a thread; the result waits for it."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    future = pool.submit(act, *arguments)
    return lambda: (pool.shutdown(), future.result())[1]


def test_fixed_shares_and_dealt_ones_are_bit_equal_in_strict_order(small, daemon):
    seen = []
    for share in (False, daemon.socket):
        loaders = ranks(small, 3, batch_size=5, share=share, order="strict", seed=4)
        seen.append([steps(loaders) for _ in range(2)])
        close(loaders)
    alone, dealt = seen
    for epoch, other in zip(alone, dealt, strict=True):
        for step, same in zip(epoch, other, strict=True):
            for a, b in zip(step, same, strict=True):
                assert a.samples == b.samples and a.valid == b.valid
                assert torch.equal(a.images, b.images)


def test_torchs_distributed_sampler_says_rank_seed_and_epoch(small):
    samplers = [DistributedSampler(range(97), 4, rank, seed=3) for rank in range(4)]
    options = dict(batch_size=5, transform=runs.CROP)
    loaders = [runs.Recording(small, sampler=sampler, **options) for sampler in samplers]
    assert [(loader.rank, loader.world_size, loader.seed) for loader in loaders] == [
        (r, 4, 3) for r in range(4)
    ]
    first, second = steps(loaders), steps(loaders)
    assert sorted(valid(first)) == sorted(valid(second)) == list(range(97))
    assert valid(first) != valid(second), "epochs advance by themselves"
    for sampler in samplers:
        sampler.set_epoch(0)
    close(loaders)
    loaders = [runs.Recording(small, sampler=sampler, **options) for sampler in samplers]
    assert valid(steps(loaders)) == valid(first)
    for sampler in samplers:
        sampler.set_epoch(1)
    assert valid(steps(loaders)) == valid(second), "and set_epoch is heard"
    for sampler in samplers:
        sampler.set_epoch(0)
    assert valid(steps(loaders)) == valid(first)
    close(loaders)


def test_a_loaded_state_stays_when_the_sampler_says_its_epoch(small):
    def make():
        sampler = DistributedSampler(range(97), 1, 0)
        return sampler, runs.Recording(small, sampler=sampler, batch_size=10, transform=runs.CROP)

    sampler, loader = make()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = runs.epoch(loader, 4 if epoch else None)
    state = loader.state_dict()
    loader.close()
    sampler, loader = make()
    loader.load_state_dict(state)
    for epoch in range(1, 3):
        sampler.set_epoch(epoch)
        rest = runs.epoch(loader)
        if epoch == 1:
            assert sorted(s for b in seen + rest for s in b.samples) == list(range(97))
    loader.close()
    sampler, loader = make()
    sampler.set_epoch(7)
    with runs.Recording(small, sampler=sampler, batch_size=97) as late:
        assert late._epoch == 7 and loader._epoch == 0


# -- who is who ---------------------------------------------------------------------------------------


def test_ranks_of_torchrun_find_each_other(small, daemon):
    code = f"""
    loader = make(share={daemon.socket!r}, batch_size=5)
    other = make(batch_size=3, world_size=1)  # of this process only
    got = [loader._received.count() for _ in loader]
    print(loader.rank, loader.world_size, len(got), sum(1 for _ in other), loader._job_name())
    """
    env = dict(WORLD_SIZE=2, TORCHELASTIC_RUN_ID="run7")
    children = [start(code, small, RANK=rank, **env) for rank in range(2)]
    lines = [printed(child).split(maxsplit=4) for child in children]
    assert [line[:4] for line in lines] == [["0", "2", "10", "33"], ["1", "2", "10", "33"]]
    assert lines[0][4] == lines[1][4]
    assert re.fullmatch(r"run7 loader [0-9a-f]{6}\.0 of 2 ranks\n", lines[0][4])


def test_a_loader_that_only_one_rank_makes_does_not_part_the_others(small, daemon):
    only = [runs.Recording(small, batch_size=2, rank=1, world_size=2, share=False) for _ in range(3)]
    loaders = ranks(small, 2, batch_size=6, share=daemon.socket)
    assert len(steps(loaders)) == len(loaders[0])
    close([*only, *loaders])


def test_a_rank_is_there_once(small, daemon):
    loaders = ranks(small, 2, batch_size=4, share=daemon.socket, job="twice")
    double = ranks(small, 2, batch_size=4, share=daemon.socket, job="twice")[1]
    double._ordinal = loaders[1]._ordinal
    assert len(steps(loaders, 2)) == 2
    names = {job["job"] for job in daemon.status()["jobs"]}
    ordinal = loaders[0]._ordinal
    assert names == {f"twice loader {ordinal} of 2 ranks rank {rank} of 2" for rank in range(2)}
    with pytest.raises(JobNameError, match="with rank 1"):
        iter(double)
    close([*loaders, double])


def test_wrong_ranks_are_named(small):
    for options, message in [
        (dict(rank=1), "together with world_size"),
        (dict(world_size=2), "together with rank"),
        (dict(rank=2, world_size=2), "between 0 and world_size - 1"),
        (dict(rank=0, world_size=2, sampler=[1, 2]), "leave out the sampler"),
        (dict(remainder="round"), "remainder should be one of"),
    ]:
        with pytest.raises(ValueError, match=message):
            forebay.DataLoader(small, **options)


def test_explain_says_who_deals(small, daemon):
    loaders = ranks(small, 2, batch_size=4, share=daemon.socket)
    steps(loaders, 1)
    assert "rank      1 of 2, remainder pad, dealt by the daemon" in loaders[1].explain()
    close(loaders)
    loaders = ranks(small, 2, batch_size=4, share=False)
    steps(loaders, 1)
    assert "rank      0 of 2, remainder pad, fixed shares" in loaders[0].explain()
    close(loaders)


# -- states -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["fixed", "strict", "ready"])
@pytest.mark.parametrize("whose", [0, 1])
def test_any_ranks_state_restores_the_job_on_any_number_of_ranks(small, daemon, where, whose):
    """2, then 1, then 4 ranks in one epoch, each from the state of one rank."""
    order = "strict" if where == "fixed" else where
    options = dict(batch_size=5, share=share_of(daemon, where), order=order, seed=8)
    with runs.loader(small, batch_size=1, shuffle=True, seed=8) as loader:
        alone = runs.by_position(runs.epoch(loader))
    state, seen = None, []
    for world_size, most in ((2, 3), (1, 4), (4, None)):
        loaders = ranks(small, world_size, **options)
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        seen += steps(loaders, most)
        state = json.loads(json.dumps(loaders[min(whose, world_size - 1)].state_dict()))
        close(loaders)
    assert sorted(valid(seen)) == list(range(97)) and state["epoch"] == 1
    if where != "ready":
        pixels = {sample: image for sample, image in alone.values()}
        for batch in itertools.chain(*seen):
            for sample, image, mark in zip(batch.samples, batch.images, batch.valid, strict=True):
                assert not mark or torch.equal(image, pixels[sample]), "the copies are those of one process"


def test_states_of_ranks_that_went_their_own_ways_are_merged(tmp_path, threads):
    threads(2)
    root = pictures.folder(tmp_path, 60, size=(16, 16))
    # The slow one is the last file by name, and is wanted early by rank 1 in some epoch.
    pictures.generate(2600, 2000).save(root / "class0" / "z.jpg")
    order = (forebay._native.Picks().sequence(61, True, 2, epoch) for epoch in range(1000))
    epoch = next(epoch for epoch, samples in enumerate(order) if samples.index(60) == 5)
    options = dict(batch_size=4, share=False, order=90, seed=2)

    def begun(world_size, states):
        loaders = ranks(root, world_size, **options)
        for loader, state in zip(loaders, states, strict=True):
            loader.load_state_dict(state)
        return loaders

    loaders = ranks(root, 3, **options)
    for loader in loaders:
        loader.set_epoch(epoch)
    seen = steps(loaders, 2)
    states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
    close(loaders)
    assert 60 not in valid(seen) and states[1]["own"] is not None, "one sample of rank 1 is late"
    # A rank's own state is enough for itself.
    for loaders in (begun(3, states), begun(1, [forebay.merge_states(states)])):
        assert sorted(valid(seen + steps(loaders))) == list(range(61))
        close(loaders)
    for world_size, rank in ((1, 0), (3, 2)):
        with pytest.raises(InvalidError, match="merge_states"):
            ranks(root, world_size, **options)[rank].load_state_dict(states[1])
    with pytest.raises(InvalidError, match="states of ranks"):
        forebay.merge_states([states[1]])


@pytest.mark.parametrize("n", [9, 11, 16, 3])
def test_a_state_taken_after_an_empty_batch_counts_the_step(small, n):
    """4 ranks of 2, uneven: ranks without a sample in the last step know that it was taken."""
    dataset = forebay.ImageFolder(small).subset(range(n))
    options = dict(batch_size=2, remainder="uneven", share=False)
    loaders = ranks(dataset, 4, **options)
    seen = steps(loaders, len(loaders[0]))
    states = [loader.state_dict() for loader in loaders]
    close(loaders)
    assert sorted(valid(seen)) == list(range(n))
    assert all(state["received"]["base"] == n for state in states)
    for world_size in (4, 1):
        for state in states:
            loaders = ranks(dataset, world_size, **options)
            for loader in loaders:
                loader.load_state_dict(state)
            assert steps(loaders) == []
            close(loaders)


def test_padding_has_names_of_its_own_where_samples_come_twice(small):
    dataset = forebay.ImageFolder(small).subset([5, 3, 5])
    loaders = ranks(dataset, 4, batch_size=1, share=False)
    steps(loaders)
    names = [(loader.native.samples, loader.native.names()[3] or [0]) for loader in loaders]
    close(loaders)
    assert len({str(name) for name in names}) == 4


def test_a_rank_that_dies_is_told_to_the_others(small, daemon):
    loaders = ranks(small, 2, batch_size=4, share=daemon.socket)
    running = [iter(loader) for loader in loaders]
    for one in running:
        next(one)
    loaders[1].close()
    with pytest.raises(InvalidError, match="has left in mid-epoch"):
        for _ in running[0]:
            pass
    loaders[0].close()


def test_states_that_do_not_belong_together_are_not_merged(small):
    loaders = ranks(small, 2, batch_size=4, share=False)
    states = [loader.state_dict() for loader in loaders]
    assert forebay.merge_states(states) == states[0]
    steps(loaders)
    with pytest.raises(InvalidError, match="differ in epoch"):
        forebay.merge_states([states[0], loaders[1].state_dict()])
    with pytest.raises(ValueError, match="of all ranks"):
        forebay.merge_states([])
    close(loaders)


def test_skipped_samples_leave_ranks_in_step(tmp_path, daemon):
    root = pictures.folder(tmp_path, 40, classes=1, size=(24, 24))
    files = sorted(root.rglob("*.jpg"))
    for number in (3, 4, 5, 17):
        files[number].write_bytes(b"\xff\xd8\xff\xe0 not a picture")
    for share in (False, daemon.socket):
        loaders = ranks(root, 3, batch_size=4, share=share, on_error="skip", shuffle=False, order="strict")
        with pytest.warns(UserWarning, match="skipped"):
            seen = steps(loaders)
        assert sorted(valid(seen)) == [i for i in range(40) if i not in (3, 4, 5, 17)]
        close(loaders)
