"""Guards subsets, filters, mixtures and datasets put together: what is in them, and that loaders share it."""

import collections
import pickle

import forebay
import pictures
import pytest
import runs
import torch
from forebay.errors import InvalidError
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """40 further JPEGs in 2 classes."""
    return pictures.folder(tmp_path_factory.mktemp("other"), 40, classes=2, size=(40, 44))


@pytest.fixture
def whole(small):
    return forebay.ImageFolder(small)


def images(dataset, **options):
    """Every image of an epoch in order, undistorted."""
    with runs.loader(dataset, batch_size=8, transform=[v1.CenterCrop(16)], **options) as loader:
        return torch.cat([batch.images for batch in runs.epoch(loader)])


def samples(dataset, **options):
    return [s for batch in runs.run(dataset, batch_size=8, **options) for s in batch.samples]


def test_a_subset_is_its_samples_in_their_order(whole):
    everything = images(whole)
    picked = [5, 90, 3, 3, 17]
    subset = whole.subset(picked)
    assert len(subset) == 5 and subset.targets == [whole.targets[i] for i in picked]
    assert subset.samples == [whole.samples[i] for i in picked]
    assert torch.equal(images(subset), everything[picked])
    assert sorted(samples(subset, shuffle=True)) == sorted(picked)
    assert subset.subset([1, 4]).samples == [whole.samples[90], whole.samples[17]]
    assert subset.fingerprint != whole.fingerprint == whole.subset(range(97))._native.fingerprint
    again = pickle.loads(pickle.dumps(subset))
    assert again.samples == subset.samples and again.fingerprint == subset.fingerprint
    for wrong in (-1, 97):
        with pytest.raises(IndexError, match="of a dataset of 97"):
            whole.subset([wrong])


def test_a_repeated_sample_is_another_copy(whole):
    [batch] = runs.run(whole.subset([4, 4, 4]), batch_size=3)
    assert not torch.equal(batch.images[0], batch.images[1])
    assert not torch.equal(batch.images[1], batch.images[2])


def test_a_filter_keeps_what_is_true(whole):
    kept = whole.filter(lambda path, target: target == 2 and path.endswith(".jpg"))
    assert set(kept.targets) == {2} and len(kept) == whole.targets.count(2)
    assert samples(kept) == [i for i, target in enumerate(whole.targets) if target == 2]


def test_datasets_stand_one_behind_the_other(whole, small, other):
    both = forebay.concat([whole, str(other)])
    assert len(both) == 137 and both.path(97).startswith(str(other))
    assert both.targets == whole.targets + forebay.ImageFolder(other).targets
    assert torch.equal(images(both), torch.cat([images(whole), images(other)]))
    mixed = forebay.concat([both.subset([100, 3]), whole.subset([7])])
    assert mixed.samples == [both.samples[100], both.samples[3], whole.samples[7]]
    assert torch.equal(images(mixed), images(both)[[100, 3, 7]])
    with pytest.raises(AttributeError, match="different classes"):
        both.classes  # noqa: B018 (it raises)
    halves = forebay.concat([whole.subset(range(50)), whole.subset(range(50, 97))])
    assert halves._indices is None and halves._native.fingerprint == whole._native.fingerprint
    with pytest.raises(ValueError, match="at least one"):
        forebay.concat([])


def test_a_mixture_draws_by_weight_and_anew_in_every_epoch(whole, other):
    both = forebay.concat([whole, other])
    options = dict(batch_size=10, transform=[v1.CenterCrop(8)])
    with runs.loader(both.mix([0.25, 0.75], samples=2000), **options) as loader:
        assert len(loader) == 200
        first, second = ([s for b in runs.epoch(loader) for s in b.samples] for _ in range(2))
    assert first != second
    share = sum(s >= 97 for s in first) / 2000
    assert 0.7 < share < 0.8
    weighted = whole.subset([1, 2, 3]).mix([1, 0, 3], samples=400)
    counts = collections.Counter(samples(weighted, shuffle=None))
    assert set(counts) == {1, 3} and 2 < counts[3] / counts[1] < 4.5
    once = whole.mix([1.0] * 97, samples=50, replacement=False)
    assert len(set(samples(once))) == 50
    for weights in ([1.0], [-1.0] * 97, [0.0] * 97, [float("nan")] * 97):
        with pytest.raises(InvalidError):
            whole.mix(weights)
    with pytest.raises(TypeError, match="first, then mix"):
        weighted.subset([0])


def test_a_mixture_resumes_with_its_repeats(whole):
    mixed = whole.subset(range(6)).mix([1.0] * 6, samples=40)
    with runs.loader(mixed, batch_size=4) as loader:
        runs.epoch(loader)
        second = runs.epoch(loader)
    with runs.loader(mixed, batch_size=4) as loader:
        runs.epoch(loader)
        runs.epoch(loader, 3)
        state = loader.state_dict()
    with runs.loader(mixed, batch_size=4) as loader:
        loader.load_state_dict(state)
        assert runs.epoch(loader) == second[3:]


def test_a_state_of_another_subset_is_refused(whole):
    with runs.loader(whole.subset([1, 2, 3]), batch_size=1) as loader:
        runs.epoch(loader, 1)
        state = loader.state_dict()
    refused = pytest.raises(InvalidError, match="another dataset")
    with runs.loader(whole.subset([1, 2, 4]), batch_size=1) as loader, refused:
        loader.load_state_dict(state)


def test_bad_samples_of_a_subset_are_known_after_a_resume_and_replaced_from_it(tmp_path):
    root = pictures.folder(tmp_path, 40, classes=1, size=(24, 24))
    files = sorted(root.rglob("*.jpg"))
    files[30].write_bytes(b"\xff\xd8\xff\xe0 not a picture")
    picked = [5, 30, 12]
    for on_error, expect in (("skip", [5, 12]), ("substitute", [5, 5, 12])):
        subset = forebay.ImageFolder(root).subset(sorted(picked))
        for share in (False, "process"):
            options = dict(batch_size=1, on_error=on_error, share=share)
            with runs.loader(subset, **options) as loader, pytest.warns(UserWarning, match="failed"):
                assert sorted(s for b in runs.epoch(loader) for s in b.samples) == expect
                state = loader.state_dict()
            assert [row[0] for row in state["quarantine"]] == [30]
            with runs.loader(subset, **options) as loader:
                loader.load_state_dict(state)
                assert sorted(s for b in runs.epoch(loader) for s in b.samples) == expect


def test_torchs_subset_and_concat_are_read_natively(small, other):
    plain, further = ImageFolder(small, v1.CenterCrop(8)), ImageFolder(other)
    subset = Subset(plain, [9, 2, 30])
    with forebay.DataLoader(subset, batch_size=3, output="uint8") as loader:
        [(got, targets)] = list(loader)
    expect = [v1.functional.pil_to_tensor(subset[i][0]) for i in range(3)]
    assert torch.equal(got, torch.stack(expect)) and targets.tolist() == [subset[i][1] for i in range(3)]
    joined = ConcatDataset([Subset(ImageFolder(small), [1]), further])
    with forebay.DataLoader(joined, batch_size=41, transform=v1.CenterCrop(8)) as loader:
        [(_, targets)] = list(loader)
    assert targets.tolist() == [joined[i][1] for i in range(41)]
    with pytest.raises(ValueError, match="same transform"):
        forebay.DataLoader(ConcatDataset([plain, further]))
    with pytest.raises(TypeError, match="Subset or ConcatDataset"):
        forebay.DataLoader(list(range(3)))


def test_folds_share_copies(whole):
    """Five folds, mixing 0: each sample is wanted by four of five."""
    everything = list(range(97))
    folds = [[i for i in everything if i % 5 != fold] for fold in range(5)]
    options = dict(batch_size=4, shuffle=True, transform=runs.CROP, share="process", mixing=0.0)
    loaders = [runs.Recording(whole.subset(fold), **options) for fold in folds]
    seen = [[] for _ in folds]
    for _ in range(4):
        running = [iter(loader) for loader in loaders]
        over = 0
        while over < len(running):
            over = sum(next(one, None) is None for one in running)
            for loader, got in zip(loaders, seen, strict=True):
                got.extend(loader.native.samples)
    metrics = [loader.metrics() for loader in loaders]
    for loader, fold, got in zip(loaders, folds, seen, strict=True):
        loader.close()
        assert set(got) == set(fold), "only its own samples"
    delivered = sum(one["deliveries"] for one in metrics)
    assert delivered == 4 * sum(map(len, folds))
    assert (
        sum(one["preparations"] for one in metrics) / delivered <= 0.29 + 0.05
    )  # the end is worked ahead of
