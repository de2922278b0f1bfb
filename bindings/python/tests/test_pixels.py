"""Guards the pixels: what Forebay makes is what torchvision makes with Pillow from the same drawn numbers."""

import forebay
import numpy as np
import oracle
import pictures
import pytest
import torch
import torchvision.transforms.functional as F
from amounts import amount
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2

FLIP = v1.RandomHorizontalFlip(0.5)
GEOMETRY = {
    "training": [v1.RandomResizedCrop(224), FLIP],
    "training v2": [v2.RandomResizedCrop(96, antialias=True), v2.RandomHorizontalFlip(0.5)],
    "small crops": [v1.RandomResizedCrop((31, 45), scale=(0.01, 0.2), ratio=(0.3, 3)), FLIP],
    "flip, then crop": [FLIP, v1.RandomResizedCrop(64)],
    "validation": [v1.Resize(256), v1.CenterCrop(224)],
    "validation v2": [v2.Resize(256), v2.CenterCrop(224)],
    "squeeze": [v1.Resize((50, 130))],
    "enlarge": [v1.Resize((433, 333))],
    "longest side": [v1.Resize(100, max_size=150)],
    "longest side v2": [v2.Resize(100, max_size=150)],
    "odd centre": [v1.Resize(67), v1.CenterCrop((64, 33))],
    "centre of a smaller image": [v1.CenterCrop((301, 1300))],
    "vertical flip": [v1.Resize(40), v1.RandomVerticalFlip(0.5)],
    "both flips, then resize": [FLIP, v1.RandomVerticalFlip(0.5), v1.Resize((55, 44))],
    "flip, crop, flip": [FLIP, v1.CenterCrop(50), v1.RandomVerticalFlip(0.5), v1.Resize(33)],
    "two resizes": [v1.Resize(90), v1.RandomResizedCrop(48), FLIP],
    "no transform": [],
}
for mode in Mode:
    GEOMETRY[f"crop {mode.value}"] = [v1.RandomResizedCrop(72, interpolation=mode), FLIP]
    GEOMETRY[f"resize {mode.value}"] = [v1.Resize((90, 61), interpolation=mode)]
for mode in ("constant", "edge", "reflect", "symmetric"):
    fill = (9, 99, 199) if mode == "constant" else 0
    for version in (v1, v2):
        name = version.__name__.split(".")[-1]
        crop = version.RandomCrop((40, 30), padding=(3, 5, 2, 7), fill=fill, padding_mode=mode)
        GEOMETRY[f"pad {mode} {name}"] = [version.Resize((37, 29)), crop]
        crop = version.RandomCrop((40, 30), padding=(3, 5), fill=fill, padding_mode=mode)
        GEOMETRY[f"pad two {mode} {name}"] = [version.Resize((37, 29)), crop]
        crop = version.RandomCrop((60, 44), pad_if_needed=True, fill=fill, padding_mode=mode)
        GEOMETRY[f"pad if needed {mode} {name}"] = [version.Resize((37, 29)), crop]
        crop = version.RandomCrop((60, 44), padding=4, pad_if_needed=True, fill=fill, padding_mode=mode)
        GEOMETRY[f"pad and more {mode} {name}"] = [version.Resize((37, 29)), crop]


def samples(root, transform, **options):
    """(path, image as it came) of every sample of a folder."""
    with forebay.DataLoader(root, batch_size=None, transform=transform, **options) as loader:
        for number, (image, _) in enumerate(loader):
            yield loader, number, loader.dataset.path(number), image


def assert_equal_to_torchvision(root, transforms, tolerance=0, **options):
    filters = {str(getattr(step, "interpolation", "")).lower() for step in transforms}
    lobes = any("bicubic" in name or "lanczos" in name for name in filters)
    tolerance = max(tolerance, oracle.LOBES if lobes else oracle.LEVELS)
    wrong = {}
    for loader, number, path, image in samples(root, transforms, **options):
        source = oracle.opened(path)
        expected = oracle.replay(transforms, oracle.drawn(loader, source, number), source)
        off = oracle.difference(image, F.pil_to_tensor(expected))
        if off != 0 and (isinstance(off, tuple) or off > tolerance):
            wrong[path.rsplit("/", 1)[1]] = off
    assert not wrong, f"largest difference per file: {wrong}"


@pytest.mark.parametrize("name", GEOMETRY)
def test_crop_resize_and_flip_are_bit_equal_to_pillow(jpegs, name):
    assert_equal_to_torchvision(jpegs, GEOMETRY[name], seed=3)


def test_other_seeds_draw_other_numbers_and_stay_bit_equal(jpegs):
    for seed in range(amount(1, 10)):
        assert_equal_to_torchvision(jpegs, GEOMETRY["training"], seed=1000 + seed)


def test_float_batches_are_torchs_own_to_1e_6(jpegs):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    for head, last in [
        (GEOMETRY["training"], [v1.ToTensor(), v1.Normalize(mean, std)]),
        (GEOMETRY["small crops"], [v1.ToTensor()]),
        (
            GEOMETRY["training v2"],
            [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)],
        ),
        (GEOMETRY["small crops"], [v2.ToImage(), v2.ToDtype(torch.float32, scale=False)]),
    ]:
        for loader, number, path, image in samples(jpegs, v1.Compose(head + last)):
            source = oracle.opened(path)
            expected = oracle.replay(head, oracle.drawn(loader, source, number), source)
            expected = v1.Compose(last)(expected)
            assert image.dtype == torch.float32
            expected = torch.as_tensor(expected)
            levels = 255 if expected.max() > 10 and not oracle.EXACT else 1  # not scaled to 0..1
            torch.testing.assert_close(image, expected, rtol=0, atol=oracle.FLOAT * levels)


@pytest.mark.parametrize("kind", ["png", "webp"])
def test_png_and_webp_are_what_pillow_makes_rgb_of(stills, kind):
    wrong = {}
    for _, _, path, image in samples(stills, None):
        if path.endswith(kind):
            off = oracle.difference(image, F.pil_to_tensor(oracle.opened(path)))
            if off != 0:
                wrong[path.rsplit("/", 1)[1]] = off
    assert not wrong, f"largest difference per file: {wrong}"


def test_png_and_webp_go_through_the_same_steps(stills):
    # Lossy WebP has a test of its own above; here crop and resize are looked at.
    with forebay.DataLoader(stills, batch_size=None, transform=GEOMETRY["training"]) as loader:
        for number, (image, _) in enumerate(loader):
            path = loader.dataset.path(number)
            if "lossy" in path:
                continue
            source = oracle.opened(path)
            expected = oracle.replay(GEOMETRY["training"], oracle.drawn(loader, source, number), source)
            assert oracle.difference(image, F.pil_to_tensor(expected)) <= oracle.LEVELS, path


def test_exif_orientation_is_ignored(tmp_path):
    image = pictures.generate(40, 20)
    (tmp_path / "a").mkdir()
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        image.save(tmp_path / "a" / f"{orientation}.jpg", exif=exif)
        image.save(tmp_path / "a" / f"{orientation}.png", exif=exif)
    for _, _, path, out in samples(tmp_path, None):
        assert oracle.difference(out, F.pil_to_tensor(oracle.opened(path))) == 0, path
        assert out.shape == (3, 20, 40)


@pytest.mark.parametrize("what", ["brightness", "contrast", "saturation", "hue"])
def test_each_colour_operation_is_within_one_level_of_pillow(jpegs, what):
    # Moderate and strong: where nothing is clipped, and where most of it is.
    for bounds in [(-0.5, 0.5), (0.02, 0.1)] if what == "hue" else [(0.1, 1.9), (2, 4)]:
        steps = [v1.Resize(amount(90, 300), max_size=400), v1.ColorJitter(**{what: bounds})]
        assert_equal_to_torchvision(jpegs, steps, tolerance=1 + oracle.STRETCHED)


def test_combined_colour_jitter_is_as_close_except_here_and_there(jpegs):
    steps = [v1.RandomResizedCrop(64), v1.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    differing = total = 0
    for loader, number, path, image in samples(jpegs, steps):
        source = oracle.opened(path)
        expected = F.pil_to_tensor(oracle.replay(steps, oracle.drawn(loader, source, number), source))
        differing += int(((image.int() - expected.int()).abs() > 1).sum())
        total += image.numel()
    # One level before a strong contrast or hue step may be more than one after it.
    assert differing <= 1e-3 * total


@pytest.mark.parametrize("what", ["brightness", "contrast", "saturation"])
def test_colour_before_the_crop_works_on_the_whole_image(jpegs, what):
    steps = [v1.ColorJitter(**{what: 0.8}), v1.RandomResizedCrop(48), FLIP]
    assert_equal_to_torchvision(jpegs, steps, tolerance=1)


def test_scaled_decoding_of_large_photographs_is_close(tmp_path):
    (tmp_path / "a").mkdir()
    names = amount(["retina", "hubble_deep_field"], pictures.PHOTOS)
    for name in names:
        image = pictures.photo(name)
        factor = 1800 / max(image.size)
        image = image.resize([round(side * factor) for side in image.size], Image.Resampling.BICUBIC)
        for subsampling in ("4:4:4", "4:2:0"):
            image.save(
                tmp_path / "a" / f"{name}-{subsampling[2:]}.jpg".replace(":", ""),
                quality=90,
                subsampling=subsampling,
            )
    for steps in (GEOMETRY["training"], GEOMETRY["validation"]):
        used = set()
        for loader, number, path, image in samples(tmp_path, steps, decode="scaled", seed=5):
            source = oracle.opened(path)
            numbers = oracle.drawn(loader, source, number)
            expected = F.pil_to_tensor(oracle.replay(steps, numbers, source))
            off = (image.float() - expected.float()).abs().mean().item()
            assert off <= 1.5, f"{path}: mean difference {off:.2f}"
            used.add(off > 0)
        assert True in used, "nothing was decoded at a smaller scale"


FLOAT = [v1.RandomResizedCrop(32), FLIP, v1.ToTensor(), v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]


def batches(root, transform, output=None):
    with forebay.DataLoader(root, batch_size=16, transform=transform, output=output) as loader:
        return [images.clone() for images, _ in loader]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["", "/channels_last", "/nchw"])
def test_other_float_outputs_are_the_cast_of_float32(small, dtype, layout):
    reference = batches(small, FLOAT)
    for want, got in zip(reference, batches(small, FLOAT, dtype + layout), strict=True):
        assert got.dtype == getattr(torch, dtype) and got.shape == want.shape
        assert torch.equal(got, want.to(got.dtype))
        last = layout == "/channels_last"
        kind = torch.channels_last if last else torch.contiguous_format
        assert got.is_contiguous(memory_format=kind)


@pytest.mark.parametrize("layout", ["", "/channels_last"])
def test_bytes_come_out_as_bytes_and_as_scaled_floats_when_asked(small, layout):
    plain, cast = FLOAT[:2], FLOAT[:3]
    reference = batches(small, plain)
    assert reference[0].dtype == torch.uint8
    for want, got, scaled in zip(
        reference,
        batches(small, cast, "uint8" + layout),
        batches(small, plain, "float16" + layout),
        strict=True,
    ):
        assert torch.equal(got, want)
        assert torch.equal(scaled, (want.float() / 255).half())
    last = batches(small, plain, "channels_last")[0]
    assert torch.equal(last, reference[0]) and last.is_contiguous(memory_format=torch.channels_last)


def test_a_dtype_at_the_end_of_the_transform_is_the_output(small):
    half = [v2.RandomResizedCrop(32), v2.ToImage(), v2.ToDtype(torch.float16, scale=True)]
    full = [*half[:2], v2.ToDtype(torch.float32, scale=True)]
    for got, want in zip(batches(small, half), batches(small, full), strict=True):
        assert got.dtype == torch.float16 and torch.equal(got, want.half())


@pytest.mark.parametrize("value", [0, 0.7, (0.1, -0.5, 2.0)])
@pytest.mark.parametrize("output", [None, "float16/channels_last"])
def test_erasing_fills_the_drawn_box_with_the_value_after_normalising(small, value, output):
    erasing = v1.RandomErasing(p=0.7, value=value)
    erased = 0
    for loader, number, path, image in samples(small, [*FLOAT, erasing], output=output):
        source = oracle.opened(path)
        numbers = oracle.drawn(loader, source, number)
        expected = v1.Compose(FLOAT[2:])(oracle.replay(FLOAT[:2], numbers, source))
        expected = oracle.erase(expected, numbers)
        assert oracle.same(image, expected), path
        erased += len(numbers["erasures"])
    assert 40 < erased < 95


def test_erasing_with_noise_is_normal_inside_and_leaves_the_outside(small):
    erasing = v1.RandomErasing(p=1, value="random", scale=(0.2, 0.5))
    noise = []
    for loader, number, path, image in samples(small, [*FLOAT, erasing]):
        source = oracle.opened(path)
        numbers = oracle.drawn(loader, source, number)
        expected = v1.Compose(FLOAT[2:])(oracle.replay(FLOAT[:2], numbers, source))
        box = numbers["erasures"][0]["rect"]
        inside = np.zeros((32, 32), bool)
        inside[box["y"] : box["y"] + box["height"], box["x"] : box["x"] + box["width"]] = True
        mask = torch.from_numpy(inside)
        assert oracle.same(image[:, ~mask], expected[:, ~mask])
        noise.append(image[:, mask].flatten())
    noise = torch.cat(noise)
    assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02
    assert len(torch.unique(noise)) > 0.9 * len(noise)
