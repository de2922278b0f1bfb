"""Several training loops in one process, apart and sharing: what they get and what is prepared for it.

    python examples/share.py path/to/imagefolder [loaders] [rounds]

Each loop takes batches as fast as it can. Both ways run in turn, so that a busy machine disturbs both.
"""

import statistics
import sys
import threading
import time

import forebay
from torchvision import transforms

TRANSFORM = transforms.Compose(
    [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)
EPOCHS = 2


def train(loader):
    for _ in range(EPOCHS):
        for _images, _targets in loader:
            pass


def measure(dataset, count, **options):
    """Samples per second of all loops together, and preparations per delivery."""
    loaders = [
        forebay.DataLoader(
            dataset,
            batch_size=64,
            shuffle=True,
            transform=TRANSFORM,
            seed=seed,
            **options,
        )
        for seed in range(count)
    ]
    loops = [threading.Thread(target=train, args=(loader,)) for loader in loaders]
    start = time.perf_counter()
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    seconds = time.perf_counter() - start
    metrics = [loader.metrics() for loader in loaders]
    for loader in loaders:
        loader.close()
    delivered = sum(one["deliveries"] for one in metrics)
    return delivered / seconds, sum(one["preparations"] for one in metrics) / delivered


def main(root, count=4, rounds=5):
    dataset = forebay.ImageFolder(root)
    apart, shared = [], []
    for _ in range(int(rounds)):
        apart.append(measure(dataset, int(count)))
        shared.append(measure(dataset, int(count), share="process"))
    for name, runs in (("apart", apart), ("shared", shared)):
        rate, prepared = (
            statistics.median(values) for values in zip(*runs, strict=True)
        )
        print(
            f"{name:7} {rate:7.0f} samples/s   {prepared:.2f} preparations per delivery"
        )
    ratios = sorted(b[0] / a[0] for a, b in zip(apart, shared, strict=True))
    print(
        f"ratio   {statistics.median(ratios):7.2f}   ({ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} rounds)"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
