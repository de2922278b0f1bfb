"""What arguments of a loader may be, with PyTorch's messages where it has them."""

from __future__ import annotations

import os
from typing import Any


def check_torch(num_workers: int, timeout: float, prefetch_factor: int | None, persistent: bool) -> None:
    if num_workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
        )
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError(
            "prefetch_factor option could only be specified in multiprocessing."
            "let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
        )
    if prefetch_factor is not None and prefetch_factor < 0:
        raise ValueError("prefetch_factor option should be non-negative")
    if persistent and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")


def choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} should be one of {', '.join(map(repr, choices))}, but got {value!r}")


def check_share(share: Any) -> None:
    if isinstance(share, (bool, os.PathLike)) or share in ("auto", "process"):
        return
    if not isinstance(share, str) or os.sep not in share:
        raise ValueError(
            "share should be 'auto', 'process', True, False or the path of a daemon's socket, "
            f"but got {share!r}"
        )


def resolve_seed(seed: int | None, generator: Any, sampler: Any) -> int:
    if seed is None:
        generator = generator if generator is not None else getattr(sampler, "generator", None)
        if generator is not None and hasattr(generator, "initial_seed"):
            seed = generator.initial_seed()
        else:
            seed = getattr(sampler, "seed", None)
            seed = seed if isinstance(seed, int) else 0
    return seed % (1 << 64)
