"""Guards the drawn numbers: their distributions are those of torchvision's own ``get_params``."""

import json

import numpy as np
import pytest
import torch
from amounts import amount
from forebay import _native
from forebay.lower import lower
from PIL import Image
from scipy import stats
from torchvision import transforms as v1

DRAWS = amount(2000, 20_000)
#: Seeds are fixed, so a right program passes always; a wrong one is far below.
LEAST_P = 1e-3


def draws(transform, width, height, count=DRAWS, seed=1):
    """The drawn numbers of `count` samples."""
    recipe = json.dumps({"steps": lower(transform), "decode": "exact"})
    return [json.loads(_native.recipe_draw(recipe, width, height, seed, i, 0)) for i in range(count)]


def assert_same_distribution(name, ours, theirs):
    p = stats.ks_2samp(ours, theirs).pvalue
    assert p > LEAST_P, f"{name}: p = {p:.2g}, means {np.mean(ours):.4g} and {np.mean(theirs):.4g}"


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [
        ((500, 375), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((375, 500), (0.5, 0.9), (0.5, 2.0)),
        # So long that most tries fail and the middle is taken.
        ((900, 60), (0.3, 1.0), (3 / 4, 4 / 3)),
        ((11, 7), (0.08, 1.0), (3 / 4, 4 / 3)),
    ],
)
def test_random_resized_crops_are_drawn_as_torchvision_draws_them(size, scale, ratio):
    torch.manual_seed(7)
    transform = v1.RandomResizedCrop(3, scale=scale, ratio=ratio)
    width, height = size
    image = Image.new("RGB", size)
    theirs = np.array([transform.get_params(image, list(scale), list(ratio)) for _ in range(DRAWS)])
    ours = []
    for numbers in draws(transform, width, height):
        ops = [op for op in numbers["ops"] if op["op"] == "crop"]
        box = ops[0] if ops else {"x": 0, "y": 0, "width": width, "height": height}
        ours.append((box["y"], box["x"], box["height"], box["width"]))
    ours = np.array(ours)
    for name, number in {
        "area": lambda b: b[:, 2] * b[:, 3],
        "log aspect": lambda b: np.log(b[:, 3] / b[:, 2]),
        "top": lambda b: b[:, 0],
        "left": lambda b: b[:, 1],
        "slack above": lambda b: b[:, 0] / np.maximum(height - b[:, 2], 1),
    }.items():
        assert_same_distribution(name, number(ours), number(theirs))


def test_random_crops_are_uniform_over_all_places():
    boxes = [n["ops"][-1] for n in draws(v1.RandomCrop(8, padding=2), 12, 10)]
    for side, places in (("x", 9), ("y", 7)):
        counts = np.bincount([box[side] for box in boxes], minlength=places)
        assert len(counts) == places
        assert stats.chisquare(counts).pvalue > LEAST_P


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_flips_come_with_their_probability_and_apart_from_each_other(p):
    both = [v1.RandomHorizontalFlip(p), v1.RandomVerticalFlip(p)]
    seen = [tuple(op["op"] for op in numbers["ops"]) for numbers in draws(both, 10, 10)]
    for op in ("flip_horizontal", "flip_vertical"):
        flipped = sum(op in ops for ops in seen)
        assert stats.binomtest(flipped, DRAWS, p).pvalue > LEAST_P
    assert stats.binomtest(sum(len(ops) == 2 for ops in seen), DRAWS, p * p).pvalue > LEAST_P


def test_jitter_factors_and_their_order_are_drawn_as_torchvision_draws_them():
    torch.manual_seed(8)
    transform = v1.ColorJitter(0.4, (0.2, 3.0), 0.6, (-0.1, 0.4))
    bounds = (transform.brightness, transform.contrast, transform.saturation, transform.hue)
    theirs = [transform.get_params(*bounds) for _ in range(DRAWS)]
    names = ["brightness", "contrast", "saturation", "hue"]
    ours = [numbers["ops"] for numbers in draws(transform, 10, 10)]
    for which, name in enumerate(names):
        factors = [next(op for op in ops if op["op"] == name) for ops in ours]
        factors = [op.get("factor", op.get("shift")) for op in factors]
        assert_same_distribution(name, factors, [params[which + 1] for params in theirs])
    orders = {}
    for ops in ours:
        order = tuple(op["op"] for op in ops)
        orders[order] = orders.get(order, 0) + 1
    assert len(orders) == 24
    assert stats.chisquare(list(orders.values())).pvalue > LEAST_P


def test_jitter_leaves_out_what_was_not_asked_for():
    for numbers in draws(v1.ColorJitter(contrast=0.5), 10, 10, count=50):
        assert [op["op"] for op in numbers["ops"]] == ["contrast"]


@pytest.mark.parametrize(("scale", "ratio"), [((0.02, 0.33), (0.3, 3.3)), ((0.4, 0.9), (0.9, 1.1))])
def test_erased_boxes_are_drawn_as_torchvision_draws_them(scale, ratio):
    torch.manual_seed(9)
    image = torch.zeros(3, 60, 90)
    theirs = [v1.RandomErasing.get_params(image, scale, ratio, [0.0])[:4] for _ in range(DRAWS)]
    # When ten tries fail torchvision erases the image with itself.
    theirs = np.array([box for box in theirs if box[2:] != (60, 90)])
    steps = [v1.ToTensor(), v1.RandomErasing(p=1, scale=scale, ratio=ratio)]
    ours = [numbers["erasures"][0]["rect"] for numbers in draws(steps, 90, 60) if numbers["erasures"]]
    ours = np.array([(box["y"], box["x"], box["height"], box["width"]) for box in ours])
    assert abs(len(ours) - len(theirs)) < 0.05 * DRAWS
    for column, name in enumerate(("top", "left", "height", "width")):
        assert_same_distribution(name, ours[:, column], theirs[:, column])


def test_erasing_happens_with_its_probability():
    steps = [v1.ToTensor(), v1.RandomErasing(p=0.25)]
    erased = sum(len(numbers["erasures"]) for numbers in draws(steps, 90, 60))
    assert stats.binomtest(erased, DRAWS, 0.25).pvalue > LEAST_P


def test_numbers_depend_on_seed_sample_epoch_and_occurrence_and_on_nothing_else():
    recipe = json.dumps({"steps": lower([v1.RandomResizedCrop(8)]), "decode": "exact"})

    def draw(*name):
        return _native.recipe_draw(recipe, 400, 300, *name)

    assert draw(1, 2, 3, 0) == draw(1, 2, 3) == draw(1, 2, 3)
    others = [draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4), draw(1, 2, 3, 1)]
    assert len({draw(1, 2, 3), *others}) == 5


def test_neighbouring_samples_and_epochs_draw_unrelated_numbers():
    transform = v1.ColorJitter(brightness=1)
    rows = np.array([[n["ops"][0]["factor"] for n in draws(transform, 5, 5, seed=seed)] for seed in range(3)])
    inner = np.corrcoef(rows[0][:-1], rows[0][1:])[0, 1]
    assert np.abs(np.corrcoef(rows) - np.eye(3)).max() < 0.1 and abs(inner) < 0.1
