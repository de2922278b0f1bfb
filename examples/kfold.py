"""k-fold cross-validation from one pool: a sample is prepared once for all k - 1 folds that train on it.

    python examples/kfold.py path/to/imagefolder
    python examples/kfold.py path/to/imagefolder --folds 10 --epochs 5

All folds run at the same time, in threads of one process; with `--socket` a daemon feeds them. Each one trains
on its part of the samples and validates on the rest after every epoch. Validation has no random steps, so its
images are kept if memory allows it: after the first epoch none is prepared again.
"""

import argparse
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import forebay
import torch
from torch import nn
from torchvision import transforms

TRAIN = transforms.Compose(
    [
        transforms.RandomResizedCrop(64),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)
VALIDATE = transforms.Compose(
    [
        transforms.Resize(72),
        transforms.CenterCrop(64),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", help="a folder with one sub-folder per class")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.001, help="learning rate")
    parser.add_argument(
        "--step", type=float, default=0.0, help="seconds that a step takes at least"
    )
    parser.add_argument("--socket", help="daemon to use; default: this process")
    return parser.parse_args()


class Fold:
    """One of the k jobs: its loaders, its model and what came of them."""

    def __init__(self, number, dataset, folds, args):
        self.args = args
        rest = [i for j, fold in enumerate(folds) if j != number for i in fold]
        share = args.socket or "process"
        self.train = forebay.DataLoader(
            dataset.subset(rest),
            args.batch,
            shuffle=True,
            transform=TRAIN,
            seed=number,
            share=share,
            mixing=0.0,  # as few preparations as possible
        )
        self.check = forebay.DataLoader(
            dataset.subset(folds[number]), args.batch, transform=VALIDATE, share=share
        )
        self.model = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * 64 * 64, len(dataset.classes))
        )
        self.accuracy = 0.0
        #: Preparations for each epoch of validation.
        self.prepared = []

    def run(self, together):
        optimizer = torch.optim.SGD(self.model.parameters(), self.args.rate)
        together.wait()
        for _ in range(self.args.epochs):
            for images, targets in self.train:
                end = time.perf_counter() + self.args.step
                loss = nn.functional.cross_entropy(self.model(images), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(max(0.0, end - time.perf_counter()))
            self.validate()

    def validate(self):
        correct = seen = 0
        with torch.inference_mode():
            for images, targets in self.check:
                correct += (self.model(images).argmax(1) == targets).sum().item()
                seen += len(images)
        self.accuracy = correct / seen
        before = sum(self.prepared)
        self.prepared.append(self.check.metrics()["preparations"] - before)


def main():
    args = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = forebay.ImageFolder(args.root)
    shuffled = torch.randperm(len(dataset)).tolist()
    folds = [shuffled[number :: args.folds] for number in range(args.folds)]
    jobs = [Fold(number, dataset, folds, args) for number in range(args.folds)]
    together = threading.Barrier(args.folds)
    with ThreadPoolExecutor(args.folds) as pool:
        for running in [pool.submit(job.run, together) for job in jobs]:
            running.result()

    print(f"{'fold':>4}{'accuracy':>10}   prepared for each epoch of validation")
    for number, job in enumerate(jobs):
        print(f"{number:4}{job.accuracy:10.3f}   {' '.join(map(str, job.prepared))}")
    metrics = [job.train.metrics() for job in jobs]
    prepared = sum(one["preparations"] for one in metrics)
    delivered = sum(one["deliveries"] for one in metrics)
    print(f"mean{sum(job.accuracy for job in jobs) / args.folds:10.3f}")
    print(
        f"training {prepared / delivered:.3f} preparations per delivery "
        f"(apart 1.000, at best {1 / (args.folds - 1):.3f})"
    )
    for job in jobs:
        job.train.close()
        job.check.close()


if __name__ == "__main__":
    main()
