"""Loads an image folder with Forebay, then with PyTorch; reports to `forebay demo` in JSON lines."""

import json
import os
import sys
import time

CONFIG = json.loads(sys.argv[1])
_replies = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def reply(**fields):
    _replies.write(json.dumps(fields) + "\n")
    _replies.flush()


def load(side, make):
    """Times each epoch; the first one starts before the loader exists."""
    start = time.perf_counter()
    loader = make()
    for epoch in range(CONFIG["epochs"]):
        images, told = 0, start
        reply(side=side, epoch=epoch + 1, done=0)
        for batch, _ in loader:
            images += len(batch)
            now = time.perf_counter()
            if now - told > 0.05:
                told = now
                reply(side=side, epoch=epoch + 1, done=images)
        end = time.perf_counter()
        reply(side=side, epoch=epoch + 1, images=images, seconds=end - start)
        start = end


def main():
    try:
        package = "torch"
        import torch

        package = "torchvision"
        from torchvision import datasets, transforms

        package = "forebay"
        import forebay
    except ImportError as error:
        reply(missing=package, why=str(error))
        return
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    torch.set_num_threads(1)
    forebay.configure(threads=CONFIG["threads"])
    load(
        "forebay",
        lambda: forebay.DataLoader(CONFIG["data"], batch_size=64, shuffle=True, transform=transform),
    )
    load(
        "torch",
        lambda: torch.utils.data.DataLoader(
            datasets.ImageFolder(CONFIG["data"], transform),
            batch_size=64,
            shuffle=True,
            num_workers=CONFIG["threads"],
            persistent_workers=True,
        ),
    )


# PyTorch's worker processes may import this file again.
if __name__ == "__main__":
    main()
