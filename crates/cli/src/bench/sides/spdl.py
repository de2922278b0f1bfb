# SPDL: its thread pipeline over torchvision.io's decoder and v2 transforms, which release the GIL.
# Its own FFmpeg functions, with crop, scale and flip in one filter graph, came out about equal.


def prepare():
    import spdl.pipeline  # noqa: F401
    import torch
    from importlib.metadata import version
    from torchvision import datasets, io  # noqa: F401
    from torchvision.transforms import v2  # noqa: F401

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    return f"SPDL {version('spdl')}"


def order(epochs):
    import random
    from torchvision import datasets

    samples = datasets.ImageFolder(DATA).samples
    shuffled = random.Random(SEED)
    for _ in range(epochs):
        shuffled.shuffle(samples)
        yield from samples


def batches(epochs):
    import torch
    from spdl.pipeline import PipelineBuilder
    from torchvision import io
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )

    def decode(sample):
        path, label = sample
        return transform(io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB)), label

    def collate(samples):
        images, labels = zip(*samples)
        return torch.stack(images), torch.tensor(labels)

    pipeline = (
        PipelineBuilder()
        .add_source(order(epochs))
        .pipe(decode, concurrency=THREADS)
        .aggregate(BATCH, drop_last=True)
        .pipe(collate)
        .add_sink(2)
        .build(num_threads=THREADS)
    )
    with pipeline.auto_stop():
        for images, _ in pipeline:
            yield images


def first():
    return batches(1)


def later():
    return batches(100_000)
