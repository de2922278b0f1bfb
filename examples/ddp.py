"""Distributed training that can be killed, resumed on another number of ranks, and evaluated exactly.

    torchrun --nproc-per-node 2 examples/ddp.py path/to/imagefolder
    python examples/ddp.py path/to/imagefolder                    # alone: one rank, no process group

Every fifth sample is held out. The table shows, for each epoch, how many samples all ranks have trained on
and evaluated: each one once, also where ranks and batches do not divide them, because `loader.valid` tells
padding apart. To see a resume, let a run be killed and start it again with any number of ranks that divides
the batch:

    torchrun --nproc-per-node 2 examples/ddp.py path/to/imagefolder --checkpoint job.pt --kill-at 25
    torchrun --nproc-per-node 3 examples/ddp.py path/to/imagefolder --checkpoint job.pt
"""

import argparse
import os
import signal

import forebay
import torch
import torch.distributed as dist
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
EVALUATE = transforms.Compose(
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
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=48, help="of all ranks together")
    parser.add_argument("--rate", type=float, default=0.0003, help="learning rate")
    parser.add_argument("--checkpoint", help="file to write, and to resume from")
    parser.add_argument("--every", type=int, default=10, help="steps between two")
    parser.add_argument("--kill-at", type=int, help="kill rank 0 after so many steps")
    parser.add_argument("--order-logs", help="folder that gets what each rank received")
    return parser.parse_args()


def total(*numbers):
    """The sums of these numbers over all ranks."""
    sums = torch.tensor(numbers, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(sums)
    return sums.tolist()


def evaluate(model, loader):
    """Samples seen by all ranks, and the accuracy on them."""
    model.eval()
    seen = correct = 0
    with torch.inference_mode():
        for images, targets in loader:
            # Padding makes the ranks' steps equal; it does not count.
            valid = loader.valid
            seen += valid.sum().item()
            correct += ((model(images).argmax(1) == targets) & valid).sum().item()
    seen, correct = total(seen, correct)
    return int(seen), correct / max(seen, 1)


def save(path, model, optimizer, loader, sums):
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),  # the whole job's, whatever rank it is from
        "sums": sums,
    }
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def main():
    args = arguments()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if args.batch % ranks:
        raise SystemExit(
            f"a batch of {args.batch} cannot be split between {ranks} ranks"
        )
    if ranks > 1:
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)

    dataset = forebay.ImageFolder(args.root)
    held_out = range(0, len(dataset), 5)
    rest = sorted(set(range(len(dataset))) - set(held_out))

    def make(name, indices, **options):
        # The loader finds rank and number of ranks by itself.
        log = (
            os.path.join(args.order_logs, f"{name}.{{rank}}.jsonl")
            if args.order_logs
            else None
        )
        batch = args.batch // ranks
        return forebay.DataLoader(dataset.subset(indices), batch, log=log, **options)

    train = make("train", rest, shuffle=True, transform=TRAIN, seed=1)
    test = make("evaluate", held_out, transform=EVALUATE)
    main_rank = train.rank == 0

    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, len(dataset.classes)))
    optimizer = torch.optim.SGD(model.parameters(), args.rate, momentum=0.9)
    criterion = nn.CrossEntropyLoss(reduction="none")
    first, trained, loss_sum = 0, 0, 0.0
    if args.checkpoint and os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        train.load_state_dict(state["loader"])
        first = state["loader"]["epoch"]
        test.set_epoch(first)
        if main_rank:
            trained, loss_sum = state["sums"]  # of all ranks
            print(
                f"resumed in epoch {first} after {trained:.0f} samples, ranks: {ranks}"
            )
    parallel = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model

    if main_rank:
        print(
            f"{'epoch':>5}{'trained':>12}{'loss':>9}{'evaluated':>12}{'accuracy':>10}"
        )
    steps = 0
    for epoch in range(first, args.epochs):
        model.train()
        for images, targets in train:
            losses = criterion(parallel(images), targets)[train.valid]
            # Ranks' gradients are averaged: so every sample weighs the same, on any number of ranks.
            loss = losses.sum() / train.batch_size
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            trained += len(losses)
            loss_sum += losses.sum().item()
            steps += 1
            if args.checkpoint and steps % args.every == 0:
                sums = total(trained, loss_sum)
                if main_rank:
                    save(args.checkpoint, model, optimizer, train, sums)
            if steps == args.kill_at and main_rank:
                os.kill(os.getpid(), signal.SIGKILL)
        trained, loss_sum = total(trained, loss_sum)
        seen, accuracy = evaluate(model, test)
        if main_rank:
            done, checked = f"{trained:.0f}/{len(rest)}", f"{seen}/{len(held_out)}"
            loss_mean = loss_sum / max(trained, 1)
            print(f"{epoch:5}{done:>12}{loss_mean:9.4f}{checked:>12}{accuracy:10.3f}")
            if args.checkpoint:
                save(args.checkpoint, model, optimizer, train, [0, 0.0])
        trained, loss_sum = 0, 0.0
    train.close()
    test.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
