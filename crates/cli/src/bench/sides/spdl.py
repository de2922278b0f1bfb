# SPDL: its thread pipeline over its own FFmpeg-based image functions; crop, flip and scale run in
# one filter graph per image, casting and normalising once per batch.


def prepare():
    import spdl.io  # noqa: F401  (fails here when FFmpeg's libraries are missing)
    import spdl.pipeline  # noqa: F401
    import torch
    from importlib.metadata import version

    torch.set_num_threads(1)
    return f"SPDL {version('spdl')}"


def order(epochs):
    import random
    from torchvision import datasets

    samples = datasets.ImageFolder(DATA).samples
    shuffled = random.Random(SEED)
    for _ in range(epochs):
        shuffled.shuffle(samples)
        yield from samples


def decode(sample):
    import random
    import math
    import spdl.io

    path, label = sample
    packets = spdl.io.demux_image(path)
    width, height = packets.width, packets.height
    area = width * height
    for _ in range(10):
        target = area * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = random.randint(0, width - w), random.randint(0, height - h)
            break
    else:
        w = h = min(width, height)
        x, y = (width - w) // 2, (height - h) // 2
    flip = ",hflip" if random.random() < 0.5 else ""
    graph = f"crop={w}:{h}:{x}:{y}:exact=1,scale={SIZE}:{SIZE}:flags=bilinear{flip},format=pix_fmts=rgb24"
    return spdl.io.decode_packets(packets, filter_desc=graph), label


def collate(samples):
    import spdl.io
    import torch

    images = spdl.io.to_torch(spdl.io.convert_frames([frame for frame, _ in samples]))
    images = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    mean = torch.tensor(MEAN_255).view(1, 3, 1, 1)
    std = torch.tensor(STD_255).view(1, 3, 1, 1)
    return images.sub_(mean).div_(std), torch.tensor([label for _, label in samples])


def batches(epochs):
    from spdl.pipeline import PipelineBuilder

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


serve(prepare, lambda: batches(1), lambda: batches(100_000))
