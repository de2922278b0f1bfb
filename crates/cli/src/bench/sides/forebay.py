# Forebay's own loader, used as a training script would.


def prepare():
    import forebay
    import torch
    from torchvision import transforms  # noqa: F401

    torch.set_num_threads(1)
    forebay.configure(
        memory=CONFIG["memory"],
        threads=THREADS or None,
        cache="auto" if CONFIG["keep"] else "off",
    )
    return f"forebay {forebay.__version__}, torch {torch.__version__}"


def loader():
    import forebay

    return forebay.DataLoader(
        DATA,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        seed=SEED,
        decode=CONFIG["decode"],
        transform=transform(),
        **({"share": ADDRESS, "order": "ready", "mixing": 0} if ADDRESS else {"share": False}),
    )


def first():
    import tempfile

    # A first epoch has no index to find.
    with tempfile.TemporaryDirectory() as empty:
        os.environ["FOREBAY_CACHE_DIR"] = empty
        for images, _ in loader():
            yield images


def later():
    global current
    with loader() as current:
        while True:
            for images, _ in current:
                yield images


def counted():
    return current.metrics()
