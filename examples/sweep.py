"""Trials of a search in processes that start at different times and share a daemon's preparations.

    python examples/sweep.py path/to/imagefolder
    python examples/sweep.py path/to/imagefolder --rates 0.01 0.001 0.0001 --epochs 5 --stagger 3

Each trial trains with another learning rate and gets every sample once per epoch. The table shows how fast
each of them went and how long it waited for batches; below it stands what was prepared for all together.
"""

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import forebay
import torch
from torch import nn
from torchvision import transforms

TRANSFORM = transforms.Compose(
    [
        transforms.RandomResizedCrop(64),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)
ready = None


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", help="a folder with one sub-folder per class")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0.001, 0.0003, 0.0001]
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--stagger", type=float, default=1.0, help="seconds between starts"
    )
    parser.add_argument(
        "--step", type=float, default=0.0, help="seconds that a step takes at least"
    )
    parser.add_argument("--socket", help="daemon to use; default: one is started")
    return parser.parse_args()


def prepare(barrier):
    """Runs once in each process."""
    global ready
    ready = barrier


def trial(number, rate, args):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ready.wait()  # all have imported torch
    time.sleep(number * args.stagger)
    dataset = forebay.ImageFolder(args.root)
    loader = forebay.DataLoader(
        dataset,
        args.batch,
        shuffle=True,
        transform=TRANSFORM,
        seed=number,
        share=args.socket or True,
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, len(dataset.classes)))
    optimizer = torch.optim.SGD(model.parameters(), rate)
    loss_sum = 0.0
    with loader:
        start = time.perf_counter()
        for _ in range(args.epochs):
            loss_sum = 0.0  # of the last epoch
            for images, targets in loader:
                end = time.perf_counter() + args.step
                loss = nn.functional.cross_entropy(model(images), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                loss_sum += loss.item() * len(images)
                time.sleep(max(0.0, end - time.perf_counter()))
        seconds = time.perf_counter() - start
        metrics = loader.metrics()
    return seconds, loss_sum / len(dataset), metrics


def main():
    args = arguments()
    count = len(args.rates)
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(count)
    with ProcessPoolExecutor(count, spawn, prepare, (barrier,)) as pool:
        trials = [pool.submit(trial, *pair, args) for pair in enumerate(args.rates)]
        results = [one.result() for one in trials]

    print(
        f"{'trial':>5}{'rate':>10}{'samples':>9}{'samples/s':>11}{'waited':>10}{'loss':>9}"
    )
    for number, (seconds, loss, metrics) in enumerate(results):
        samples, waited = metrics["deliveries"], metrics["wait_seconds"]
        print(
            f"{number:5}{args.rates[number]:10g}{samples:9}{samples / seconds:11.0f}{waited:8.2f} s{loss:9.4f}"
        )
    prepared, delivered = (
        sum(metrics[key] for _, _, metrics in results)
        for key in ("preparations", "deliveries")
    )
    print(
        f"together {prepared / delivered:.2f} preparations per delivery "
        f"(apart 1.00, at best {1 / count:.2f})"
    )


if __name__ == "__main__":
    main()
