"""Guards exactly once, the order contracts and reproducibility, for every way to say what is drawn."""

import gc
import itertools

import forebay
import pictures
import pytest
import runs
import torch
from amounts import amount
from forebay import _native
from forebay.errors import ClosedError, InvalidError, RaggedBatchError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchvision import transforms as v1

OWN = settings(
    max_examples=amount(150, 3000),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def sized(tmp_path_factory):
    """Folders of 1 … 70 tiny images, by size."""
    made = {}

    def get(n):
        if n not in made:
            made[n] = pictures.folder(tmp_path_factory.mktemp(f"n{n}"), n, size=(12, 10))
        return made[n]

    return get


def expected(n, seed, epoch, shuffle, batch, drop_last):
    order = _native.Picks().sequence(n, True, seed, epoch) if shuffle else list(range(n))
    cuts = [order[at : at + batch] for at in range(0, n, batch)]
    return cuts[:-1] if drop_last and n % batch else cuts


@OWN
@given(
    n=st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 70]),
    batch=st.integers(1, 20),
    late=st.integers(0, 40),
    workers=st.integers(1, 5),
    seed=st.integers(0, 2**64 - 1),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_every_epoch_is_a_permutation_and_nothing_is_late(
    sized, threads, n, batch, late, workers, seed, drop_last, shuffle
):
    threads(workers)
    late = late if shuffle else 0
    options = dict(batch_size=batch, order=late, seed=seed, drop_last=drop_last, shuffle=shuffle)
    with runs.loader(sized(n), transform=[v1.CenterCrop(4)], **options) as loader:
        for epoch in range(2):
            seen = runs.epoch(loader)
            cuts = expected(n, seed, epoch, shuffle, batch, drop_last)
            assert len(loader) == len(seen) == len(cuts)
            assert [len(b.positions) for b in seen] == [len(cut) for cut in cuts]
            order = list(itertools.chain.from_iterable(cuts))
            places = [p for b in seen for p in b.positions]
            # With D the remainder that is left out is still the last positions, not whatever was late.
            assert sorted(places) == list(range(len(order)))
            assert [s for b in seen for s in b.samples] == [order[p] for p in places]
            if late == 0:
                assert [b.samples for b in seen] == cuts
            done = 0
            for b in seen:
                done += len(b.positions)
                for position in range(max(0, done - late)):
                    assert position in places[:done], f"position {position} is over {late} late"


@pytest.mark.parametrize("late", [0, 13])
def test_pixels_do_not_depend_on_threads(small, threads, late):
    seen = {}
    for workers in (1, 8, 3):
        threads(workers)
        options = dict(batch_size=10, shuffle=True, seed=4, order=late)
        seen[workers] = [runs.run(small, **options) for _ in range(amount(2, 10))]
    reference = seen[1][0]
    for run in itertools.chain(*seen.values()):
        if late == 0:
            assert run == reference
        assert runs.same_pixels(runs.by_position(run), runs.by_position(reference))


def test_the_slack_changes_no_pixel_and_no_set(small):
    strict = runs.by_position(runs.run(small, batch_size=8, shuffle=True, seed=4))
    for late in (1, 8, 64, 1000):
        run = runs.run(small, batch_size=8, shuffle=True, seed=4, order=late)
        assert runs.same_pixels(runs.by_position(run), strict)


def test_a_slow_sample_is_overtaken_within_the_slack_and_holds_up_strict_order(tmp_path, threads):
    threads(2)
    pictures.folder(tmp_path, 60, size=(16, 16))
    order = _native.Picks().sequence(61, True, 0, 0)
    # The slow one is the last file by name, and is wanted early in some epoch.
    pictures.generate(2600, 2000).save(tmp_path / "class0" / "z.jpg")
    epoch = next(e for e in range(1000) if _native.Picks().sequence(61, True, 0, e).index(60) == 2)
    assert len(order) == 61
    for late, overtaken in ((0, False), (40, True)):
        with runs.loader(tmp_path, batch_size=4, shuffle=True, order=late) as loader:
            loader.set_epoch(epoch)
            places = [p for b in runs.epoch(loader) for p in b.positions]
            assert (places.index(2) > 2) == overtaken


def test_batch_size_changes_neither_order_nor_pixels(small):
    whole = runs.by_position(runs.run(small, batch_size=97, shuffle=True, seed=9))
    for size in (1, 7, 64):
        assert runs.same_pixels(
            runs.by_position(runs.run(small, batch_size=size, shuffle=True, seed=9)), whole
        )


def test_epochs_and_seeds_differ_and_set_epoch_brings_one_back(small):
    with runs.loader(small, batch_size=97, shuffle=True, seed=1) as loader:
        first, second = runs.epoch(loader), runs.epoch(loader)
        assert first[0].samples != second[0].samples
        loader.set_epoch(0)
        assert runs.epoch(loader) == first
        assert runs.epoch(loader) == second
        loader.set_epoch(1)
        assert runs.epoch(loader) == second
        loader.sampler.set_epoch(0)
        assert list(loader.sampler) == first[0].samples
    other = runs.run(small, batch_size=97, shuffle=True, seed=2)
    assert other[0].samples != first[0].samples
    with pytest.raises(ValueError, match="non-negative"):
        loader.set_epoch(-1)


def test_without_shuffle_the_order_stays_and_the_pixels_change(small):
    with runs.loader(small, batch_size=97) as loader:
        first, second = runs.epoch(loader), runs.epoch(loader)
    assert first[0].samples == second[0].samples == list(range(97))
    assert not torch.equal(first[0].images, second[0].images)
    assert first[0].targets.tolist() == loader.dataset.targets


@pytest.mark.parametrize("late", [0, 16])
def test_break_and_iter_again_begins_the_next_epoch(small, late):
    options = dict(batch_size=8, shuffle=True, seed=3, order=late)
    with runs.loader(small, **options) as loader:
        runs.epoch(loader, 3)
        again = runs.epoch(loader)
    with runs.loader(small, **options) as loader:
        loader.set_epoch(1)
        assert runs.same_pixels(runs.by_position(again), runs.by_position(runs.epoch(loader)))


def test_an_older_iterator_says_that_a_newer_one_took_over(small):
    with runs.loader(small, batch_size=8) as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        with pytest.raises(ClosedError, match="newer iter"):
            next(old)
        next(new)


def test_an_ended_iterator_stays_ended(small):
    with runs.loader(small, batch_size=50) as loader:
        iterator = iter(loader)
        assert len(iterator) == 2 and len(list(iterator)) == 2
        assert list(iterator) == []
        assert next(iterator, None) is None


def test_two_loaders_run_beside_each_other_and_do_not_mix(small):
    alone = [runs.run(small, batch_size=8, shuffle=True, seed=seed) for seed in (1, 2)]
    with (
        runs.loader(small, batch_size=8, shuffle=True, seed=1) as a,
        runs.loader(small, batch_size=8, shuffle=True, seed=2) as b,
    ):
        pairs = [
            (runs.Seen(a.native, x), runs.Seen(b.native, y)) for x, y in zip(iter(a), iter(b), strict=True)
        ]
    assert [list(column) for column in zip(*pairs, strict=True)] == alone


# -- samplers -----------------------------------------------------------------------------------------


def samples_of(loader):
    return [batch.samples for batch in runs.epoch(loader)]


def test_a_sampler_says_which_samples_come(small):
    indices = [5, 3, 96, 0, 44, 7, 8]
    with runs.loader(small, batch_size=3, sampler=indices) as loader:
        assert samples_of(loader) == [[5, 3, 96], [0, 44, 7], [8]] and len(loader) == 3
        assert samples_of(loader) == [[5, 3, 96], [0, 44, 7], [8]]
    with runs.loader(small, batch_size=3, sampler=indices, drop_last=True) as loader:
        assert samples_of(loader) == [[5, 3, 96], [0, 44, 7]] and len(loader) == 2


def test_torchs_samplers_are_done_natively_with_an_order_of_our_own(small):
    def generator():
        return torch.Generator().manual_seed(5)

    class Mine(RandomSampler):
        pass

    dataset = range(97)
    makers = {
        "random": lambda: RandomSampler(dataset, generator=generator()),
        "replaced": lambda: RandomSampler(dataset, replacement=True, num_samples=40, generator=generator()),
        "few": lambda: RandomSampler(dataset, num_samples=40, generator=generator()),
        "weighted": lambda: WeightedRandomSampler(
            [float(i % 2) for i in range(97)], 30, generator=generator()
        ),
        "subset": lambda: SubsetRandomSampler([5, 90, 7], generator=generator()),
        "sequential": lambda: SequentialSampler(dataset),
        "mine": lambda: Mine(dataset, generator=generator()),
    }
    seen = {}
    for name, make in makers.items():
        with runs.loader(small, batch_size=10, sampler=make()) as loader:
            assert loader._own_order == (name != "mine")
            seen[name] = [list(itertools.chain(*samples_of(loader))) for _ in range(2)]
            assert len(loader) == -(-len(seen[name][0]) // 10)
        with runs.loader(small, batch_size=10, sampler=make()) as loader:
            assert [list(itertools.chain(*samples_of(loader))) for _ in range(2)] == seen[name]
        if name != "sequential":
            assert seen[name][0] != seen[name][1], "every epoch has its own order"
    for epoch in range(2):
        assert sorted(seen["random"][epoch]) == list(dataset)
        assert len(seen["replaced"][epoch]) == 40 > len(set(seen["replaced"][epoch]))
        assert len(seen["few"][epoch]) == 40 == len(set(seen["few"][epoch]))
        assert len(seen["weighted"][epoch]) == 30 and all(i % 2 for i in seen["weighted"][epoch])
        assert sorted(seen["subset"][epoch]) == [5, 7, 90]
        assert seen["sequential"][epoch] == list(dataset)
    mine = Mine(dataset, generator=generator())
    assert seen["mine"] == [list(mine), list(mine)], "what may do something else is run"


def test_a_batch_sampler_says_which_batches_come(small):
    batches = [[1], [2, 3, 4], [5, 5], [96]]
    with runs.loader(small, batch_sampler=batches, timeout=5) as loader:
        assert samples_of(loader) == batches and len(loader) == 4
        assert loader.batch_size is None and loader.drop_last is False


def test_a_batch_sampler_may_ask_for_large_batches(small):
    sampler = BatchSampler(SequentialSampler(range(97)), 40, drop_last=True)
    with runs.loader(small, batch_sampler=sampler, timeout=5) as loader:
        assert [len(batch) for batch in samples_of(loader)] == [40, 40]


def test_the_batches_of_a_batch_sampler_may_grow(small):
    with runs.loader(small, batch_sampler=[[1, 2], list(range(60)), [3]], timeout=5) as loader:
        assert [len(batch) for batch in samples_of(loader)] == [2, 60, 1]


@pytest.mark.parametrize("whole", [False, True])
def test_infinite_samplers_are_read_only_a_little_ahead(small, whole):
    asked = itertools.count()

    class Endless:
        def __iter__(self):
            while True:
                number = next(asked)
                yield [number % 97] if whole else number % 97

    kind = {"batch_sampler": Endless()} if whole else {"sampler": Endless(), "batch_size": 4}
    with runs.loader(small, **kind) as loader:
        assert len(runs.epoch(loader, 200)) == 200
        samples = 200 if whole else 800
        assert samples <= next(asked) <= samples + 40
        assert len(runs.epoch(loader, 3)) == 3


def test_repeated_indices_are_different_copies_and_the_same_ones_every_time(small):
    with runs.loader(small, batch_size=6, sampler=[4] * 6) as loader:
        first, second = runs.epoch(loader)[0], runs.epoch(loader)[0]
    assert len({image.numpy().tobytes() for image in [*first.images, *second.images]}) == 12
    assert runs.run(small, batch_size=6, sampler=[4] * 6)[0] == first
    in_threes = runs.run(small, batch_size=3, sampler=[4] * 6)
    assert torch.equal(torch.cat([batch.images for batch in in_threes]), first.images)


def test_tensor_and_numpy_indices_are_indices(small):
    with runs.loader(small, batch_size=3, sampler=torch.tensor([4, 2, 0])) as loader:
        assert samples_of(loader) == [[4, 2, 0]]


@pytest.mark.parametrize("bad", [97, 10**9])
def test_an_index_outside_the_dataset_is_a_typed_error(small, bad):
    with (
        runs.loader(small, batch_size=3, sampler=[1, bad]) as loader,
        pytest.raises(InvalidError, match=str(bad)),
    ):
        runs.epoch(loader)


def test_a_negative_index_is_refused(small):
    with runs.loader(small, batch_size=1, sampler=[-1]) as loader, pytest.raises((ValueError, IndexError)):
        runs.epoch(loader)


def test_an_empty_sampler_is_an_empty_epoch(small):
    with runs.loader(small, batch_size=3, sampler=[]) as loader:
        assert runs.epoch(loader) == [] and len(loader) == 0


def test_an_error_in_the_sampler_comes_out_and_the_next_epoch_works(small):
    class Fails:
        fail = True

        def __iter__(self):
            yield 3
            if self.fail:
                raise KeyError("from the sampler")

    sampler = Fails()
    with runs.loader(small, batch_size=1, sampler=sampler) as loader:
        with pytest.raises(KeyError, match="from the sampler"):
            runs.epoch(loader)
        sampler.fail = False
        assert samples_of(loader) == [[3]]


def test_the_seed_is_that_of_the_generator(small):
    generator = torch.Generator().manual_seed(77)
    with runs.loader(small, batch_size=97, shuffle=True, generator=generator) as loader:
        assert loader.seed == 77
        seen = runs.epoch(loader)
    assert runs.run(small, batch_size=97, shuffle=True, seed=77) == seen


def test_a_sampler_with_set_epoch_is_the_users_to_set(small):
    sampler = torch.utils.data.DistributedSampler(range(97), num_replicas=2, rank=1, seed=6)
    with runs.loader(small, batch_size=10, sampler=sampler) as loader:
        assert loader.seed == 6 and loader.sampler is sampler
        first = samples_of(loader)
        sampler.set_epoch(1)
        assert samples_of(loader) != first


# -- collating ----------------------------------------------------------------------------------------


def test_collate_fn_gets_the_samples_in_the_calling_thread(small):
    import threading

    calls = []

    def collate(samples):
        calls.append(threading.current_thread())
        assert all(isinstance(sample, tuple) and isinstance(sample[1], int) for sample in samples)
        return torch.stack([image for image, _ in samples]).float(), [target for _, target in samples]

    plain = runs.run(small, batch_size=8, shuffle=True)
    with forebay.DataLoader(small, 8, True, transform=runs.CROP, collate_fn=collate) as loader:
        for (images, targets), want in zip(loader, plain, strict=True):
            assert torch.equal(images, want.images.float()) and targets == want.targets.tolist()
    assert set(calls) == {threading.main_thread()}


def test_an_error_in_collate_fn_comes_out_and_the_loader_lives_on(small):
    def collate(samples):
        raise ZeroDivisionError

    with forebay.DataLoader(small, 8, transform=runs.CROP, collate_fn=collate) as loader:
        with pytest.raises(ZeroDivisionError):
            list(loader)
        loader.collate_fn = len
        assert sum(loader) == 97


def test_no_batch_size_yields_samples(small):
    whole = runs.run(small, batch_size=97)[0]
    with forebay.DataLoader(small, batch_size=None, transform=runs.CROP) as loader:
        assert len(loader) == 97
        for at, (image, target) in enumerate(loader):
            assert torch.equal(image, whole.images[at]) and target == whole.targets[at]
    with forebay.DataLoader(small, batch_size=None, transform=runs.CROP, collate_fn=lambda s: s) as loader:
        assert isinstance(next(iter(loader)), tuple)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    root = tmp_path_factory.mktemp("mixed")
    for size in ((20, 10), (10, 20), (20, 10)):
        pictures.folder(root, 1, size=size)
        (root / "class0" / "0000.jpg").rename(root / "class0" / f"{len(list(root.glob('*/*')))}.jpg")
    return root


def test_images_of_different_sizes_need_a_collate_fn(mixed):
    message = r"stack expects each tensor to be equal size.*at entry 1"
    with (
        runs.loader(mixed, transform=None, batch_size=3) as loader,
        pytest.raises(RaggedBatchError, match=message),
    ):
        runs.epoch(loader)
    with runs.loader(mixed, transform=None, batch_size=2, sampler=[0, 2, 1]) as loader:
        assert [tuple(batch.images.shape) for batch in runs.epoch(loader)] == [(2, 3, 10, 20), (1, 3, 20, 10)]
    with forebay.DataLoader(
        mixed, 3, collate_fn=lambda samples: samples, output="float32/channels_last"
    ) as loader:
        [batch] = list(loader)
        assert [tuple(image.shape) for image, _ in batch] == [(3, 10, 20), (3, 20, 10), (3, 10, 20)]
    for number, (image, _) in enumerate(batch):
        with forebay.DataLoader(mixed, None, sampler=[number]) as loader:
            assert torch.equal(image, next(iter(loader))[0].float() / 255)


def test_a_loader_that_is_left_in_mid_epoch_and_dropped_gives_its_memory_back_at_once(small):
    gc.disable()
    try:
        loader = forebay.DataLoader(small, batch_size=2, shuffle=True, transform=runs.CROP)
        for _ in loader:
            break
        del loader, _
        forebay.configure(threads=2)  # refuses while a loader is open
    finally:
        gc.enable()
