"""torchvision transforms (v1 and v2) to a recipe of native steps.

Only torchvision's own classes are lowered, by exact type: a subclass may do anything. What cannot be lowered
is named in a :class:`~forebay.errors.RecipeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .errors import RecipeError

Step = dict[str, Any]

_NATIVE_HINT = "it is not supported natively yet; leave it out, or use torch's DataLoader for this recipe"


def lower(transform: Any) -> list[Step]:
    """The steps of ``transform``: a torchvision object, a list of them, a list of step dicts, or ``None``."""
    steps: list[Step] = []
    tensor = False
    for part in _flatten(transform):
        if isinstance(part, dict):
            steps.append(part)
            continue
        name = type(part).__name__
        module = type(part).__module__
        if not module.startswith("torchvision.transforms"):
            raise RecipeError(f"{module}.{name}: {_NATIVE_HINT}")
        if name not in _LOWER:
            raise RecipeError(f"torchvision's {name}: {_NATIVE_HINT}")
        if tensor and getattr(part, "antialias", True) is False:
            raise RecipeError(
                f"{name}(antialias=False) on tensors: images are resized with antialiasing; drop it"
            )
        tensor = tensor or name in _TO_TENSOR
        steps.extend(_LOWER[name](part))
    return steps


def _flatten(transform: Any) -> Iterable[Any]:
    if transform is None:
        return
    if isinstance(transform, (list, tuple)):
        parts: Iterable[Any] = transform
    elif type(transform).__name__ in ("Compose", "Sequential"):
        module = type(transform).__module__
        if not module.startswith(("torchvision.transforms", "torch.nn")):
            yield transform
            return
        parts = getattr(transform, "transforms", None) or list(transform)
    else:
        yield transform
        return
    for part in parts:
        yield from _flatten(part)


def _size(t: Any) -> tuple[int, int]:
    size = t.size
    if isinstance(size, int):
        return size, size
    size = list(size)
    if len(size) == 1:
        return size[0], size[0]
    return size[0], size[1]


_PIL_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def _filter(t: Any) -> str:
    mode = t.interpolation
    if isinstance(mode, int):
        return _PIL_FILTERS[mode]
    name = str(getattr(mode, "value", mode))
    return "nearest" if name == "nearest-exact" else name


def _resize(t: Any) -> list[Step]:
    size = t.size
    if isinstance(size, (list, tuple)) and len(size) == 1:
        size = size[0]
    if size is None:
        raise RecipeError("Resize(size=None, max_size=…): give the size of the shorter edge")
    if isinstance(size, int):
        to: Step = {"shorter": size}
        if t.max_size is not None:
            to["max_size"] = t.max_size
    else:
        to = {"height": size[0], "width": size[1]}
    return [{"op": "resize", "to": to, "filter": _filter(t)}]


def _center_crop(t: Any) -> list[Step]:
    height, width = _size(t)
    return [{"op": "center_crop", "height": height, "width": width}]


def _fill(fill: Any) -> list[int]:
    if isinstance(fill, dict):
        fill = next(iter(fill.values()), 0)
    if fill is None:
        fill = 0
    values = list(fill) if isinstance(fill, (list, tuple)) else [fill]
    values = values * 3 if len(values) == 1 else values
    if len(values) != 3 or any(int(v) != v or not 0 <= v <= 255 for v in values):
        raise RecipeError(f"RandomCrop(fill={fill!r}): fill needs one or three whole numbers from 0 to 255")
    return [int(v) for v in values]


def _random_crop(t: Any) -> list[Step]:
    height, width = _size(t)
    padding = t.padding if t.padding is not None else 0
    padding = [padding] if isinstance(padding, int) else list(padding)
    if len(padding) == 1:
        padding = padding * 4
    elif len(padding) == 2:
        padding = [padding[0], padding[1], padding[0], padding[1]]
    elif ".v2" in type(t).__module__:
        # v2 keeps left, right, top, bottom.
        padding = [padding[0], padding[2], padding[1], padding[3]]
    if any(p < 0 for p in padding):
        raise RecipeError(f"RandomCrop(padding={t.padding!r}): negative padding is not supported")
    return [
        {
            "op": "random_crop",
            "height": height,
            "width": width,
            "padding": padding,
            "pad_if_needed": bool(t.pad_if_needed),
            "fill": _fill(t.fill),
            "mode": str(t.padding_mode),
            "in_turn": ".v2" not in type(t).__module__,
        }
    ]


def _random_resized_crop(t: Any) -> list[Step]:
    height, width = _size(t)
    return [
        {
            "op": "random_resized_crop",
            "height": height,
            "width": width,
            "scale": [float(x) for x in t.scale],
            "ratio": [float(x) for x in t.ratio],
            "filter": _filter(t),
        }
    ]


def _flip(op: str) -> Callable[[Any], list[Step]]:
    return lambda t: [{"op": op, "p": float(t.p)}]


def _color_jitter(t: Any) -> list[Step]:
    step: Step = {"op": "color_jitter"}
    for name in ("brightness", "contrast", "saturation", "hue"):
        bounds = getattr(t, name)
        if bounds is not None:
            step[name] = [float(bounds[0]), float(bounds[1])]
    return [step]


def _to_tensor(_: Any) -> list[Step]:
    return [{"op": "to_float", "scale": True}]


def _to_dtype(t: Any) -> list[Step]:
    dtype = t.dtype
    if isinstance(dtype, dict):
        raise RecipeError("ToDtype with a dict of types: give one dtype for the image")
    name = str(dtype).removeprefix("torch.")
    if name == "uint8":
        return []
    if name not in ("float32", "float16", "bfloat16"):
        raise RecipeError(f"{type(t).__name__}({name}): images come as uint8, float16, bfloat16 or float32")
    # ConvertImageDtype always scales; ToDtype has an argument for it.
    return [{"op": "to_float", "scale": bool(getattr(t, "scale", True)), "dtype": name}]


def _normalize(t: Any) -> list[Step]:
    return [{"op": "normalize", "mean": [float(x) for x in t.mean], "std": [float(x) for x in t.std]}]


def _random_erasing(t: Any) -> list[Step]:
    value = t.value
    if value is None or value == "random":
        fill: Any = "random"
    else:
        fill = {"constant": [float(x) for x in value] if isinstance(value, (list, tuple)) else [float(value)]}
    return [
        {
            "op": "random_erasing",
            "p": float(t.p),
            "scale": [float(x) for x in t.scale],
            "ratio": [float(x) for x in t.ratio],
            "value": fill,
        }
    ]


def _nothing(_: Any) -> list[Step]:
    return []


_TO_TENSOR = {"ToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype"}

_LOWER: dict[str, Callable[[Any], list[Step]]] = {
    "Resize": _resize,
    "CenterCrop": _center_crop,
    "RandomCrop": _random_crop,
    "RandomResizedCrop": _random_resized_crop,
    "RandomHorizontalFlip": _flip("random_horizontal_flip"),
    "RandomVerticalFlip": _flip("random_vertical_flip"),
    "ColorJitter": _color_jitter,
    "ToTensor": _to_tensor,
    "ToDtype": _to_dtype,
    "ConvertImageDtype": _to_dtype,
    "Normalize": _normalize,
    "RandomErasing": _random_erasing,
    # The images are tensors anyway.
    "PILToTensor": _nothing,
    "ToImage": _nothing,
    "ToPureTensor": _nothing,
    "Identity": _nothing,
}
