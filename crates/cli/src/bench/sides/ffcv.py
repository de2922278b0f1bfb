# FFCV over its own file: the same images at the same resolution, re-encoded at JPEG quality 90.

# A new loader compiles for seconds, so between turns the old one waits.
KEEP = True

OBEYS = False


def beton():
    return os.path.join(CACHE, "ffcv-q90.beton")


def prepare():
    import torch
    from importlib.metadata import version
    import ffcv.loader  # noqa: F401
    import ffcv.transforms  # noqa: F401
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter
    from torchvision import datasets

    torch.set_num_threads(1)
    if not os.path.exists(beton()):
        unfinished = beton() + ".unfinished"
        fields = {
            "image": RGBImageField(write_mode="jpg", max_resolution=None, jpeg_quality=90),
            "label": IntField(),
        }
        DatasetWriter(unfinished, fields, num_workers=THREADS).from_indexed_dataset(
            datasets.ImageFolder(DATA), shuffle_indices=False
        )
        os.rename(unfinished, beton())
    return f"FFCV {version('ffcv')}"


def loader(epochs):
    import numpy as np
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.reader import Reader
    from ffcv.transforms import (
        NormalizeImage,
        RandomHorizontalFlip,
        Squeeze,
        ToTensor,
        ToTorchImage,
    )

    finish = [NormalizeImage(np.array(MEAN_255), np.array(STD_255), np.float32)]
    if OUTPUT == "uint8":
        finish = []
    samples = Reader(beton()).num_samples
    return Loader(
        beton(),
        batch_size=BATCH,
        num_workers=THREADS,
        order=OrderOption.RANDOM,
        indices=np.tile(np.arange(samples, dtype="uint64"), epochs),
        os_cache=True,
        drop_last=True,
        seed=SEED,
        pipelines={
            "image": [
                RandomResizedCropRGBImageDecoder((SIZE, SIZE)),
                RandomHorizontalFlip(),
                *finish,
                ToTensor(),
                ToTorchImage(),
            ],
            "label": [IntDecoder(), ToTensor(), Squeeze()],
        },
    )


def batches(epochs):
    import torch

    # One copy to NCHW, into memory that is reused; ToTorchImage(channels_last=False) would make two.
    dtype = getattr(torch, OUTPUT)
    slots = [torch.empty(BATCH, 3, SIZE, SIZE, dtype=dtype) for _ in range(3)]
    for number, (images, _) in enumerate(loader(epochs)):
        yield slots[number % len(slots)].copy_(images)


def first():
    return batches(1)


def later():
    return batches(1_000)
