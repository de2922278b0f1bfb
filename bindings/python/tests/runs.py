"""Runs of a loader as plain values, for comparing."""

import contextlib

import forebay
import torch
from torchvision import transforms as v1

CROP = [v1.RandomResizedCrop(16), v1.RandomHorizontalFlip()]


class Seen:
    """What one batch held: positions, samples, and the pixels of each."""

    def __init__(self, native, data):
        self.positions, self.samples, self.valid = native.positions, native.samples, native.valid
        self.images, self.targets = data[0].clone(), data[1].clone()

    def __eq__(self, other):
        return (
            self.positions == other.positions
            and self.samples == other.samples
            and torch.equal(self.images, other.images)
            and torch.equal(self.targets, other.targets)
        )


class Recording(forebay.DataLoader):
    """A loader that notes the native batch behind each batch."""

    def _receive(self, batch):
        super()._receive(batch)
        self.native = batch


def loader(root, transform=CROP, **options):
    return contextlib.closing(Recording(root, transform=transform, **options))


def epoch(loader, batches=None):
    """The next epoch, or its first `batches`, as :class:`Seen`."""
    seen = []
    if batches == 0:
        return seen
    for data in loader:
        seen.append(Seen(loader.native, data))
        if len(seen) == batches:
            break
    return seen


def run(root, batches=None, **options):
    """One epoch of a fresh loader."""
    with loader(root, **options) as one:
        return epoch(one, batches)


def by_position(seen):
    """Position to (sample, pixels) of all batches; fails when a position came twice."""
    found = {}
    for batch in seen:
        for position, sample, image in zip(batch.positions, batch.samples, batch.images, strict=True):
            assert position not in found, f"position {position} came twice"
            found[position] = (sample, image)
    return found


def same_pixels(a, b):
    """Whether two results of :func:`by_position` are equal."""
    return a.keys() == b.keys() and all(
        a[key][0] == b[key][0] and torch.equal(a[key][1], b[key][1]) for key in a
    )
