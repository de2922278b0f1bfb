# PyTorch's DataLoader over torchvision's ImageFolder with its default loader (Pillow).


def prepare():
    import torch
    import torchvision
    from torchvision import datasets, transforms  # noqa: F401

    torch.set_num_threads(1)
    return f"torch {torch.__version__}, torchvision {torchvision.__version__}"


def loader(epochs):
    import torch
    from torchvision import datasets

    torch.manual_seed(SEED)
    dataset = datasets.ImageFolder(DATA, transform())
    # More draws than samples are permutations one after another: no pause at an epoch's end.
    sampler = torch.utils.data.RandomSampler(dataset, num_samples=epochs * len(dataset))
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=BATCH,
        sampler=sampler,
        num_workers=THREADS,
        persistent_workers=THREADS > 0,
        drop_last=True,
    )


def batches(epochs):
    for images, _ in loader(epochs):
        yield images


def first():
    return batches(1)


def later():
    return batches(100_000)
