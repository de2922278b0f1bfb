"""torch's datasets and samplers that say what Forebay does natively; nothing of torch is imported for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from .dataset import Dataset, ImageFolder, concat


def _is(thing: Any, module: str, name: str) -> bool:
    """Whether it is that class itself: a subclass may do something else."""
    kind = type(thing)
    return kind.__name__ == name and (kind.__module__ == module or kind.__module__.startswith(module + "."))


def native_dataset(dataset: Any, transform: Any) -> tuple[Dataset, Any]:
    """The native dataset that ``dataset`` means, and the transform."""
    native, own = _dataset(dataset)
    if own is not None and transform is not None:
        raise ValueError("transform is given both to the dataset and to the loader")
    return native, own if transform is None else transform


def _dataset(dataset: Any) -> tuple[Dataset, Any]:
    if isinstance(dataset, Dataset):
        return dataset, None
    if isinstance(dataset, (str, os.PathLike)):
        return ImageFolder(dataset), None
    if _is(dataset, "torchvision.datasets.folder", "ImageFolder"):
        from torchvision.datasets.folder import IMG_EXTENSIONS, default_loader

        plain = dataset.loader is default_loader and dataset.extensions == IMG_EXTENSIONS
        if plain and dataset.target_transform is None:
            return ImageFolder(dataset.root), dataset.transform
    if _is(dataset, "torch.utils.data", "Subset"):
        native, transform = _dataset(dataset.dataset)
        return native.subset(dataset.indices), transform
    if _is(dataset, "torch.utils.data", "ConcatDataset"):
        found = [_dataset(member) for member in dataset.datasets]
        transform = found[0][1]
        if any(other is not transform for _, other in found):
            raise ValueError(
                "the datasets of a ConcatDataset should have the same transform object, or none; "
                "pass transform= to the loader"
            )
        return concat(native for native, _ in found), transform
    kind = type(dataset)
    raise TypeError(
        "dataset should be the path of an image folder, a forebay dataset, a torchvision ImageFolder "
        "with its default loader, or torch's Subset or ConcatDataset of such, "
        f"but got {kind.__module__}.{kind.__name__}"
    )


@dataclass
class Native:
    """What a sampler means."""

    dataset: Dataset
    shuffle: bool
    ranks: tuple[int, int] | None = None
    drop: bool = False


def native_sampler(sampler: Any, dataset: Dataset) -> Native | None:
    """What a sampler of torch's means for a dataset; nothing where it must be run."""
    n = len(dataset)
    if dataset._weights is not None:
        return None
    if _is(sampler, "torch.utils.data", "SequentialSampler"):
        return Native(dataset, False) if len(sampler) == n else None
    if _is(sampler, "torch.utils.data", "RandomSampler"):
        if len(sampler.data_source) != n:
            return None
        count = len(sampler)
        if not sampler.replacement and count == n:
            return Native(dataset, True)
        if not sampler.replacement and count > n:
            return None  # several orders one behind the other
        return Native(dataset.mix([1.0] * n, count, sampler.replacement), True)
    if _is(sampler, "torch.utils.data", "SubsetRandomSampler"):
        return Native(dataset.subset(sampler.indices), True)
    if _is(sampler, "torch.utils.data", "WeightedRandomSampler"):
        weights = [float(weight) for weight in sampler.weights]
        if len(weights) > n:
            return None
        weights += [0.0] * (n - len(weights))
        return Native(dataset.mix(weights, sampler.num_samples, sampler.replacement), True)
    if _is(sampler, "torch.utils.data.distributed", "DistributedSampler"):
        if len(sampler.dataset) != n:
            return None
        ranks = (int(sampler.rank), int(sampler.num_replicas))
        return Native(dataset, bool(sampler.shuffle), ranks, bool(sampler.drop_last))
    return None


def unbatched(batch_sampler: Any) -> tuple[Any, int, bool] | None:
    """Sampler, size and ``drop_last`` of torch's own batch sampler."""
    if not _is(batch_sampler, "torch.utils.data", "BatchSampler"):
        return None
    return batch_sampler.sampler, int(batch_sampler.batch_size), bool(batch_sampler.drop_last)
