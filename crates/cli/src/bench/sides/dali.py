# NVIDIA DALI on the CPU: its fused decoder reads only the drawn crop.

OBEYS = False


def prepare():
    import nvidia.dali
    import nvidia.dali.fn  # noqa: F401
    import torch

    torch.set_num_threads(1)
    return f"DALI {nvidia.dali.__version__}"


def pipeline():
    from nvidia.dali import fn, pipeline_def, types

    finish = {"dtype": types.FLOAT, "mean": MEAN_255, "std": STD_255}
    if OUTPUT == "uint8":
        finish = {"dtype": types.UINT8}

    @pipeline_def(
        batch_size=BATCH, num_threads=THREADS, device_id=None, seed=SEED, prefetch_queue_depth=2
    )
    def pipe():
        files, labels = fn.readers.file(
            file_root=DATA, random_shuffle=True, initial_fill=1024, name="files"
        )
        images = fn.decoders.image_random_crop(
            files,
            device="cpu",
            output_type=types.RGB,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
            num_attempts=10,
        )
        images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR)
        images = fn.crop_mirror_normalize(
            images,
            output_layout="CHW",
            mirror=fn.random.coin_flip(),
            **finish,
        )
        return images, labels

    built = pipe()
    built.build()
    return built


def batches(epochs):
    import torch

    pipe = pipeline()
    samples = pipe.epoch_size("files")
    for _ in range(epochs * samples // BATCH):
        images, _ = pipe.run()
        yield torch.from_dlpack(images.as_tensor())


def first():
    return batches(1)


def later():
    return batches(100_000)
