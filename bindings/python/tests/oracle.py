"""What torchvision makes of a file with Pillow, when it is given the numbers that Forebay drew."""

import copy
import functools
import json
from collections import deque

import PIL
import torch
import torchvision.transforms.functional as F
from forebay import _native
from PIL import Image

#: Levels that resized pixels may differ by: older Pillows go through the two passes in another order.
EXACT = int(PIL.__version__.split(".")[0]) >= 13
LEVELS = 0 if EXACT else 1
#: The same for filters with negative lobes, whose passes clip, and after a colour step, which stretches.
LOBES = 0 if EXACT else 3
STRETCHED = 0 if EXACT else 8
#: And for floats of deviation 0.2 or more.
FLOAT = 1e-6 if EXACT else 0.03


def same(image, expected):
    """Bit-equal, as far as this Pillow allows."""
    expected = expected.to(image.dtype)
    return torch.equal(image, expected) if EXACT else torch.allclose(image, expected, rtol=0, atol=FLOAT)


_COLOURS = {
    "brightness": lambda image, op: F.adjust_brightness(image, op["factor"]),
    "contrast": lambda image, op: F.adjust_contrast(image, op["factor"]),
    "saturation": lambda image, op: F.adjust_saturation(image, op["factor"]),
    "hue": lambda image, op: F.adjust_hue(image, op["shift"]),
}


def drawn(loader, image, sample, epoch=0, occurrence=0):
    """The numbers of one copy."""
    width, height = image.size
    return json.loads(
        _native.recipe_draw(loader._recipe, width, height, loader.seed, sample, epoch, occurrence)
    )


def replay(transforms, numbers, image):
    """Runs torchvision's own transforms; only their random choices are replaced."""
    ops = deque(numbers["ops"])

    def take(*names):
        return ops.popleft() if ops and ops[0]["op"] in names else None

    for transform in transforms:
        name = type(transform).__name__
        if name == "Resize":
            image = transform(image)
            take("resize")
        elif name == "CenterCrop":
            image = transform(image)
            take("pad"), take("crop")
        elif name in ("RandomCrop", "RandomResizedCrop"):
            while name == "RandomCrop" and take("pad"):
                pass  # v1 pads up to three times
            image = _with_box(transform, image, take("crop"))
            take("resize")
        elif name == "RandomHorizontalFlip":
            image = F.hflip(image) if take("flip_horizontal") else image
        elif name == "RandomVerticalFlip":
            image = F.vflip(image) if take("flip_vertical") else image
        elif name == "ColorJitter":
            while op := take(*_COLOURS):
                image = _COLOURS[op["op"]](image, op)
        else:
            raise AssertionError(f"the oracle does not know {name}")
    assert not ops, f"drawn but not part of the transform: {list(ops)}"
    assert image.size == (numbers["width"], numbers["height"])
    return image


def _with_box(transform, image, crop):
    """A crop transform with its box given; no box: the whole of what there is."""
    transform = copy.copy(transform)
    if "v2" in type(transform).__module__:
        params = transform.make_params([image])
        if crop:
            params |= {"top": crop["y"], "left": crop["x"], "height": crop["height"], "width": crop["width"]}
        else:
            params |= {"top": 0, "left": 0}
            if "needs_crop" not in params:
                params |= {"height": image.height, "width": image.width}
        return transform.transform(image, params)
    if crop:
        transform.get_params = lambda *_: (crop["y"], crop["x"], crop["height"], crop["width"])
    else:
        transform.get_params = lambda img, *_: (0, 0, img.height, img.width)
    return transform(image)


def erase(tensor, numbers):
    """Fills the erased boxes that have a constant value."""
    for erasure in numbers["erasures"]:
        box = erasure["rect"]
        value = torch.tensor(erasure["fill"]["constant"])[:, None, None]
        tensor = F.erase(tensor, box["y"], box["x"], box["height"], box["width"], value)
    return tensor


@functools.lru_cache(maxsize=160)
def opened(path):
    """As torchvision's default loader; for files that do not change."""
    with Image.open(path) as image:
        return image.convert("RGB")


def difference(a, b):
    """The largest difference of two byte tensors, or their shapes when these differ."""
    if a.shape != b.shape:
        return tuple(a.shape), tuple(b.shape)
    return int((a.int() - b.int()).abs().max()) if a.numel() else 0
