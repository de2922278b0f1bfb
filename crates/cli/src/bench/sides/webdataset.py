# WebDataset: tar shards of the same files, decoded by torchvision.io in DataLoader workers.


def shards():
    from glob import glob

    return sorted(glob(os.path.join(CACHE, "webdataset", "*.tar")))


def prepare():
    import torch
    import webdataset
    from torchvision import datasets, io  # noqa: F401
    from torchvision.transforms import v2  # noqa: F401

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    if not shards():
        folder = os.path.join(CACHE, "webdataset")
        unfinished = folder + ".unfinished"
        os.makedirs(unfinished, exist_ok=True)
        samples = datasets.ImageFolder(DATA).samples
        # At least two shards for each worker, mixed classes in each.
        count = max(4 * THREADS, len(samples) // 1000)
        for shard in range(count):
            with webdataset.TarWriter(os.path.join(unfinished, f"{shard:05d}.tar")) as tar:
                for index in range(shard, len(samples), count):
                    path, label = samples[index]
                    with open(path, "rb") as file:
                        tar.write({"__key__": f"{index:08d}", "jpg": file.read(), "cls": label})
        os.rename(unfinished, folder)
    return f"webdataset {webdataset.__version__}"


def batches(endless):
    import torch
    import webdataset
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

    def sample(record):
        jpeg = torch.frombuffer(bytearray(record["jpg"]), dtype=torch.uint8)
        return transform(io.decode_jpeg(jpeg, mode=io.ImageReadMode.RGB)), int(record["cls"])

    dataset = (
        webdataset.WebDataset(shards(), resampled=endless, shardshuffle=False if endless else 100)
        .shuffle(500)
        .map(sample)
    )
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=THREADS,
        persistent_workers=True,
        drop_last=True,
    )
    for images, _ in loader:
        yield images


def first():
    return batches(False)


def later():
    return batches(True)
