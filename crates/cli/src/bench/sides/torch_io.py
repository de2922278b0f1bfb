# PyTorch's DataLoader with torchvision.io's JPEG decoder and v2 transforms on uint8 tensors.


def prepare():
    import torch
    import torchvision
    from torchvision import datasets, io  # noqa: F401
    from torchvision.transforms import v2  # noqa: F401

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    return f"torch {torch.__version__}, torchvision {torchvision.__version__}"


def read(path):
    from torchvision import io

    return io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB)


def loader(epochs):
    import torch
    from torchvision import datasets
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    dataset = datasets.ImageFolder(DATA, transform, loader=read)
    sampler = torch.utils.data.RandomSampler(dataset, num_samples=epochs * len(dataset))
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=BATCH,
        sampler=sampler,
        num_workers=THREADS,
        persistent_workers=True,
        drop_last=True,
    )


def batches(epochs):
    for images, _ in loader(epochs):
        yield images


def first():
    return batches(1)


def later():
    return batches(100_000)
