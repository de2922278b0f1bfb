"""Guards what happens to bad files, and that every error is typed, named and survives pickling."""

import os
import pickle
import struct
import warnings

import forebay
import pictures
import pytest
import runs
import torch
from forebay import errors
from forebay.errors import RecipeError, SampleChangedError, SampleError
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

GOOD = pictures.encode(pictures.generate(40, 30), "JPEG", quality=90)
GOOD_PNG = pictures.encode(pictures.generate(40, 30), "PNG")
GOOD_WEBP = pictures.encode(pictures.generate(40, 30), "WEBP")


def bomb_jpeg():
    at = GOOD.index(b"\xff\xc0")
    return GOOD[: at + 5] + struct.pack(">HH", 65535, 65535) + GOOD[at + 9 :]


def bomb_png():
    import zlib

    head = b"IHDR" + struct.pack(">IIBBBBB", 65535, 65535, 8, 6, 0, 0, 0)
    return GOOD_PNG[:8] + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + GOOD_PNG[33:]


BAD = {
    "zero.jpg": b"",
    "zero.png": b"",
    "cut.jpg": GOOD[: len(GOOD) // 2],
    "cut-by-one.jpg": GOOD[:-1],
    "header-only.jpg": GOOD[:20],
    "cut.png": GOOD_PNG[: len(GOOD_PNG) // 2],
    "cut.webp": GOOD_WEBP[: len(GOOD_WEBP) // 2],
    "text.jpg": b"this is not an image at all\n" * 20,
    "noise.png": GOOD_PNG[:40] + bytes(range(256)),
    "bomb.jpg": bomb_jpeg(),
    "bomb.png": bomb_png(),
    "bitmap.bmp": pictures.encode(pictures.generate(8, 8), "BMP"),
}


@pytest.fixture
def tree(tmp_path):
    """20 good files, named so that bad ones can be put between them."""
    pictures.folder(tmp_path, 20, size=(24, 18))
    return tmp_path


def put(tree, name, data, before=9):
    """Adds a file that sorts before number `before`; its sample index is `before`."""
    stem, _, end = name.rpartition(".")
    path = tree / "class0" / f"{before - 1:04}z-{stem}.{end}"
    path.write_bytes(data)
    return path


def epoch_quietly(loader):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return runs.epoch(loader)


@pytest.mark.parametrize("name", BAD)
def test_raise_names_the_sample_after_the_batches_before_it(tree, name):
    path = put(tree, name, BAD[name])
    with runs.loader(tree, batch_size=4) as loader:
        seen = []
        with pytest.raises(SampleError) as caught:
            for data in loader:
                seen.append(runs.Seen(loader.native, data))
        assert [b.samples for b in seen] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        error = caught.value
        assert (error.sample, error.path) == (9, str(path)) and error.stage in ("read", "decode")
        assert str(path) in str(error) and error.cause and error.cause in str(error)
        # The loader is still good for another epoch, which meets the same file.
        with pytest.raises(SampleError):
            runs.epoch(loader)


@pytest.mark.parametrize("late", [0, 8])
@pytest.mark.parametrize("drop_last", [False, True])
def test_skip_leaves_bad_files_out_and_fills_batches_up(tree, late, drop_last):
    paths = [str(put(tree, name, data, before=i)) for i, (name, data) in enumerate(BAD.items(), 2)]
    options = dict(batch_size=4, shuffle=True, order=late, on_error="skip", drop_last=drop_last)
    with runs.loader(tree, **options) as loader:
        names = {loader.dataset.path(i): i for i in range(len(loader.dataset))}
        bad = sorted(names[path] for path in paths)
        with pytest.warns(UserWarning, match=f"{len(BAD)} samples failed and were skipped"):
            first = runs.epoch(loader)
        assert [len(b.samples) for b in first] == [4] * 5
        assert sorted(s for b in first for s in b.samples) == [i for i in range(32) if i not in bad]
        assert [row["sample"] for row in loader.quarantine] == bad
        assert sorted(row["path"] for row in loader.quarantine) == sorted(paths)
        assert all(row["cause"] and row["stage"] for row in loader.quarantine)
        reads = loader.metrics()["failures"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            second = runs.epoch(loader)
        assert len(second) == 5 and loader.metrics()["failures"] == reads == len(BAD)


@pytest.mark.parametrize("late", [0, 8])
def test_substitute_repeats_a_marked_neighbour(tree, late):
    for i, (name, data) in enumerate(BAD.items(), 2):
        put(tree, name, data, before=i)
    options = dict(batch_size=4, shuffle=True, order=late, on_error="substitute")
    with runs.loader(tree, **options) as loader:
        assert loader.valid is None
        masks, marked, total = [], 0, 0
        with pytest.warns(UserWarning, match=f"{len(BAD)} samples failed and were replaced"):
            for images, _ in loader:
                assert loader.valid.dtype == torch.bool and len(loader.valid) == len(images)
                masks.append(loader.valid.tolist())
                assert masks[-1] == loader.native.valid
                marked += masks[-1].count(False)
                total += len(images)
        bad = {row["sample"] for row in loader.quarantine}
        assert (total, marked, len(bad)) == (32, len(BAD), len(BAD))
        for batch in epoch_quietly(loader):
            assert not bad & set(batch.samples)
            # What stands in for a bad sample carries its own target.
            assert batch.targets.tolist() == [loader.dataset.targets[s] for s in batch.samples]


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_a_folder_of_only_bad_files_ends(tmp_path, on_error):
    (tmp_path / "a").mkdir()
    for i in range(5):
        (tmp_path / "a" / f"{i}.jpg").write_bytes(b"x")
    with runs.loader(tmp_path, batch_size=2, on_error=on_error) as loader:
        if on_error == "skip":
            assert epoch_quietly(loader) == []
        else:
            with pytest.raises(SampleError):
                epoch_quietly(loader)
        assert len(loader.quarantine) >= 1


def test_a_batch_sampler_whose_batch_is_all_bad_goes_on_to_the_next(tree):
    put(tree, "zero.jpg", b"")
    with runs.loader(tree, batch_sampler=[[1], [9], [10]], on_error="skip", timeout=5) as loader:
        assert [b.samples for b in epoch_quietly(loader)] == [[1], [10]]


def test_a_pickled_loader_keeps_its_quarantine(tree):
    put(tree, "zero.jpg", b"")
    with forebay.DataLoader(tree, batch_size=None, on_error="skip") as loader:
        with pytest.warns(UserWarning, match="1 samples failed"):
            assert len(list(loader)) == len(loader.dataset) - 1
        again = pickle.loads(pickle.dumps(loader))
        assert again.quarantine == loader.quarantine != []


def test_a_missing_file_is_a_sample_error(tree):
    with runs.loader(tree, batch_size=4) as loader:
        (tree / "class0" / "0005.jpg").unlink()
        with pytest.raises(SampleError, match=r"No such file") as caught:
            runs.epoch(loader)
        assert caught.value.stage == "read" and caught.value.sample == 5


def change(path, how):
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "rewritten":
        other = pictures.encode(pictures.generate(24, 18, seed=999), "JPEG", quality=90)
        path.write_bytes((other + bytes(len(data)))[: len(data)])
        os.utime(path, ns=(1, 1))
    else:
        path.write_bytes(data + b"more")


@pytest.mark.parametrize("how", ["truncated", "rewritten", "grown"])
def test_a_file_changed_in_mid_epoch_is_a_typed_error_and_the_next_open_indexes_anew(tree, how):
    path = tree / "class0" / "0019.jpg"
    with runs.loader(tree, batch_size=1, order=None) as loader:
        old = loader.dataset.fingerprint
        iterator = iter(loader)
        next(iterator)
        change(path, how)
        with pytest.raises(SampleChangedError, match="changed after it was indexed") as caught:
            for _ in iterator:
                pass
        assert caught.value.sample == 19
    again = forebay.ImageFolder(tree)
    assert (again.fingerprint != old) == (how != "rewritten")
    with runs.loader(tree, batch_size=20, on_error="skip") as loader:
        epoch_quietly(loader)
        assert all("changed" not in row["cause"] for row in loader.quarantine)


def test_a_changed_file_can_be_skipped(tree):
    with runs.loader(tree, batch_size=20, on_error="skip") as loader:
        change(tree / "class0" / "0007.jpg", "grown")
        with pytest.warns(UserWarning, match="changed after it was indexed"):
            [batch] = runs.epoch(loader)
    assert batch.samples == [i for i in range(20) if i != 7]


def test_a_crop_larger_than_the_image_is_an_error_of_that_sample(tree):
    put(tree, "wide.jpg", pictures.encode(pictures.generate(50, 50), "JPEG"))
    with runs.loader(tree, transform=[v1.RandomCrop(40)], batch_size=1, sampler=[9, 0]) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(SampleError, match=r"(?i)required crop size.*larger than") as caught:
            next(iterator)
        assert caught.value.stage == "augment"


def test_images_are_told_by_their_bytes_not_by_their_name(tree):
    for name, data in {"png.jpg": GOOD_PNG, "webp.png": GOOD_WEBP, "jpeg.webp": GOOD}.items():
        put(tree, name, data)
    with runs.loader(tree, batch_size=23) as loader:
        assert len(runs.epoch(loader)[0].samples) == 23


def test_every_exception_pickles_with_its_attributes():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) >= 12
    for kind in kinds:
        assert issubclass(kind, errors.ForebayError)
        error = kind("text", 3, "/p", "decode", "why") if issubclass(kind, SampleError) else kind("text")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind and str(again) == "text" and vars(again) == vars(error)
    for kind, base in {
        errors.InvalidError: ValueError,
        errors.RecipeError: ValueError,
        errors.DatasetNotFoundError: FileNotFoundError,
        errors.StorageError: OSError,
        errors.BudgetError: MemoryError,
        errors.SampleError: RuntimeError,
    }.items():
        assert issubclass(kind, base)


# -- constructor --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        dict(num_workers=-1),
        dict(timeout=-1),
        dict(prefetch_factor=2),
        dict(num_workers=1, prefetch_factor=-1),
        dict(persistent_workers=True),
        dict(sampler=[0], shuffle=True),
        dict(batch_sampler=[[0]], batch_size=2),
        dict(batch_sampler=[[0]], shuffle=True),
        dict(batch_sampler=[[0]], sampler=[0]),
        dict(batch_sampler=[[0]], drop_last=True),
        dict(batch_size=None, drop_last=True),
        dict(batch_size=0),
        dict(batch_size=-3),
        dict(batch_size=1.5),
        dict(batch_size=True),
    ],
    ids=str,
)
def test_bad_arguments_are_the_value_errors_of_torch(small, arguments):
    with pytest.raises(ValueError) as theirs:
        torch.utils.data.DataLoader([0, 1], **arguments)
    with pytest.raises(ValueError) as ours:
        forebay.DataLoader(small, **arguments)
    assert str(ours.value) == str(theirs.value)


def test_the_constructor_has_torchs_names_order_and_defaults(small):
    import inspect

    theirs = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    ours = inspect.signature(forebay.DataLoader.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    assert all(ours[name].kind == theirs[name].kind for name in theirs)
    with forebay.DataLoader(small) as loader:
        reference = torch.utils.data.DataLoader([0])
        for name in ("batch_size", "num_workers", "pin_memory", "drop_last", "timeout", "prefetch_factor"):
            assert getattr(loader, name) == getattr(reference, name), name


@pytest.mark.parametrize(
    "arguments",
    [
        dict(order="fast"),
        dict(order="ready"),
        dict(order=-1, shuffle=True),
        dict(order=5),
        dict(order=True, shuffle=True),
        dict(on_error="ignore"),
        dict(decode="fast"),
        dict(output="float64"),
        dict(output="int64"),
        dict(output=""),
    ],
    ids=str,
)
def test_our_own_arguments_are_checked_too(small, arguments):
    with pytest.raises(ValueError):
        forebay.DataLoader(small, **arguments)


@pytest.mark.parametrize("dataset", [[1, 2, 3], 7, None])
def test_datasets_that_are_not_native_are_named(dataset):
    with pytest.raises(TypeError, match=type(dataset).__name__):
        forebay.DataLoader(dataset)


class Mine(v1.RandomHorizontalFlip):
    pass


@pytest.mark.parametrize(
    ("transform", "named"),
    [
        (v1.RandomRotation(10), "RandomRotation"),
        (v2.RandomRotation(10), "RandomRotation"),
        (v1.Lambda(lambda x: x), "Lambda"),
        (v2.Lambda(lambda x: x), "Lambda"),
        (v1.GaussianBlur(3), "GaussianBlur"),
        (v1.AutoAugment(), "AutoAugment"),
        (v2.RandAugment(), "RandAugment"),
        (v1.RandomApply([v1.Grayscale()]), "RandomApply"),
        (v1.FiveCrop(3), "FiveCrop"),
        (Mine(), "Mine"),
        (lambda image: image, "function"),
        (v1.Compose([v1.ToTensor(), v1.Compose([v1.Pad(3)])]), "Pad"),
        (v1.Compose([v1.ToTensor(), v1.ColorJitter(0.1)]), "color_jitter"),
        (v1.Compose([v1.ToTensor(), v1.RandomResizedCrop(8)]), "random_resized_crop"),
        (v1.Compose([v1.Normalize([0], [1])]), "normalize"),
        (v1.Compose([v1.RandomErasing()]), "random_erasing"),
        (v1.Compose([v1.ToTensor(), v1.ToTensor()]), "to_float"),
        (v1.Compose([v1.ToTensor(), v1.RandomErasing(), v1.Normalize([0], [1])]), "normalize"),
        (v2.ToDtype(torch.int32), "int32"),
        (v2.ToDtype(torch.float64, scale=True), "float64"),
        ([{"op": "swirl"}], "swirl"),
        ([{"op": "random_horizontal_flip", "p": 2}], "random_horizontal_flip"),
        (v1.Normalize([0.5], [0.0]), "normalize"),
    ],
    ids=str,
)
def test_what_cannot_be_lowered_is_named(small, transform, named):
    with pytest.raises(RecipeError, match=named):
        forebay.DataLoader(small, transform=transform)


def test_bytes_cannot_be_normalised(small):
    steps = [v1.Resize((8, 8)), v1.ToTensor(), v1.Normalize([0.5], [0.5])]
    with pytest.raises(RecipeError, match="normalise"):
        forebay.DataLoader(small, transform=steps, output="uint8")


def test_a_transform_given_twice_is_refused(small):
    from torchvision.datasets import ImageFolder

    dataset = ImageFolder(small, transform=v1.CenterCrop(8))
    with forebay.DataLoader(dataset) as loader:
        assert next(iter(loader))[0].shape == (1, 3, 8, 8)
    with pytest.raises(ValueError, match="both"):
        forebay.DataLoader(dataset, transform=v1.CenterCrop(8))
    other = ImageFolder(small, loader=Image.open)
    with pytest.raises(TypeError, match="default loader"):
        forebay.DataLoader(other)


def test_explain_names_every_step(small):
    steps = [v1.RandomResizedCrop(8), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize([0.5], [0.5])]
    text = forebay.DataLoader(small, transform=steps).explain()
    for word in ("random_resized_crop", "random_horizontal_flip", "normalize", "97", "strict"):
        assert word in text, word


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"batch_size": 2}, {}])
def test_a_sampler_goes_on_however_many_samples_are_skipped(tree, options):
    bad = range(8)
    for number in bad:
        put(tree, f"bad{number}.jpg", b"")
    dataset = forebay.ImageFolder(tree)
    good = [i for i, (path, _) in enumerate(dataset.samples) if "bad" not in path]
    indices = [i for i in range(len(dataset)) if i not in good] + good
    how = {"sampler": indices} if options else {"batch_sampler": [[i] for i in indices]}
    with runs.loader(dataset, on_error="skip", timeout=20, **how, **options) as loader:
        seen = [sample for batch in epoch_quietly(loader) for sample in batch.samples]
        assert seen == good
        assert len(loader.quarantine) == len(bad)


def test_each_failure_is_reported_once_in_the_epoch_it_shows(tree):
    put(tree, "zzz.jpg", b"")
    with runs.loader(tree, batch_size=4, on_error="skip") as loader:
        with pytest.warns(UserWarning, match=r"1 samples failed.*zzz"):
            list(loader)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(loader)


@pytest.mark.parametrize("size", [10**8, 10**12, 2**62])
def test_a_batch_that_fits_nowhere_is_a_budget_error(tree, size):
    with runs.loader(tree, batch_size=size) as loader, pytest.raises(errors.BudgetError, match=r"fit|needs"):
        next(iter(loader))
