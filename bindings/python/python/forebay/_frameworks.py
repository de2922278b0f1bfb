"""Batches as torch tensors, or as NumPy arrays where torch is not installed."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any


class Torch:
    """Hands memory to torch without a copy."""

    name = "torch"

    def __init__(self, pin_memory: bool) -> None:
        import torch

        self._torch: Any = torch
        self._pin = pin_memory and torch.cuda.is_available()
        if pin_memory and not self._pin:
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used.",
                stacklevel=4,
            )

    def tensor(self, native: Any) -> Any:
        tensor = self._torch.from_dlpack(native)
        # One copy into torch's own pinned memory; the slot is free again at once.
        return tensor.pin_memory() if self._pin else tensor

    def owned(self, native: Any) -> Any:
        """A small tensor with memory of its own, so that keeping it keeps no batch."""
        tensor = self._torch.from_dlpack(native).clone()
        return tensor.pin_memory() if self._pin else tensor

    def mask(self, valid: list[bool]) -> Any:
        return self._torch.tensor(valid, dtype=self._torch.bool)


class Numpy:
    """Hands memory to NumPy without a copy."""

    name = "numpy"

    def __init__(self) -> None:
        import numpy

        self._numpy = numpy

    def tensor(self, native: Any) -> Any:
        if native.dtype == "bfloat16":
            raise TypeError("NumPy has no bfloat16; install torch, or ask for output='float32' or 'float16'")
        return self._numpy.from_dlpack(native)

    def owned(self, native: Any) -> Any:
        return self._numpy.from_dlpack(native).copy()

    def mask(self, valid: list[bool]) -> Any:
        return self._numpy.array(valid, dtype=bool)


def framework(pin_memory: bool) -> Torch | Numpy:
    """torch if it is installed, else NumPy."""
    if importlib.util.find_spec("torch") is not None:
        return Torch(pin_memory)
    if pin_memory:
        raise RuntimeError("pin_memory=True needs torch, which is not installed")
    return Numpy()
