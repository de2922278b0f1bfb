# Forebay's own loader, used as a training script would.


def prepare():
    import forebay
    import torch
    from torchvision import transforms  # noqa: F401

    torch.set_num_threads(1)
    forebay.configure(threads=THREADS)
    return f"forebay {forebay.__version__}, torch {torch.__version__}"


def loader():
    import forebay
    from torchvision import transforms

    return forebay.DataLoader(
        DATA,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        seed=SEED,
        decode=CONFIG["case"],
        transform=transforms.Compose(
            [
                transforms.RandomResizedCrop(SIZE),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        ),
    )


def first():
    import tempfile

    # A first epoch has no index to find.
    with tempfile.TemporaryDirectory() as empty:
        os.environ["FOREBAY_CACHE_DIR"] = empty
        for images, _ in loader():
            yield images


def later():
    endless = loader()
    while True:
        for images, _ in endless:
            yield images


serve(prepare, first, later)
