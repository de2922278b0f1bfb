"""One training job of `forebay demo`, told in JSON what to be; it reports in JSON lines.

Each line on stdin is a side to train on, so that all jobs begin together; the end of stdin ends it.
"""

import json
import os
import queue
import sys
import threading
import time

CONFIG = json.loads(sys.argv[1])
_replies = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
# Not sys.stdin: a forked worker closes that one, and must not wait for the thread that reads.
_tasks = os.fdopen(os.dup(0))


def reply(**fields):
    _replies.write(json.dumps(fields) + "\n")
    _replies.flush()


def read(tasks):
    for line in _tasks:
        tasks.put(json.loads(line))
    os._exit(0)


def train(loader, epochs, order):
    """Takes batches as a training loop does; the step on a GPU is a sleep."""
    done, told = 0, time.perf_counter()
    for _ in range(epochs):
        for images, _targets in loader:
            done += len(images)
            time.sleep(CONFIG["step_seconds"] * len(images))
            now = time.perf_counter()
            if now - told > 0.05:
                told = now
                reply(done=done)
        reply(order=order)
        order.clear()
    return done


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
    data, batch, threads = CONFIG["data"], CONFIG["batch"], CONFIG["threads"]
    torch.set_num_threads(1)
    forebay.configure(memory=CONFIG["memory"], threads=threads)
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    order = []

    class Watched(forebay.DataLoader):
        """Notes which samples come, for the figure on shuffling; a training loop needs none of this."""

        def _receive(self, batch):
            super()._receive(batch)
            order.extend(batch.samples)

    def with_forebay(epochs, share):
        with Watched(
            data,
            batch,
            shuffle=True,
            transform=transform,
            share=share,
            job=CONFIG["name"],
            seed=CONFIG["seed"],
        ) as loader:
            done = train(loader, epochs, order)
            counted = loader.metrics()
            return done, counted["preparations"], counted["reads"]

    def with_torch(epochs):
        folder = datasets.ImageFolder(data, transform)
        loader = torch.utils.data.DataLoader(
            folder, batch, shuffle=True, num_workers=threads, persistent_workers=True
        )
        done = train(loader, epochs, order)
        return done, done, done

    tasks = queue.SimpleQueue()
    threading.Thread(target=read, args=(tasks,), daemon=True).start()
    reply(ready=True)
    while True:
        task = tasks.get()
        start = time.perf_counter()
        if task["side"] == "pytorch":
            done, preparations, reads = with_torch(task["epochs"])
        else:
            done, preparations, reads = with_forebay(task["epochs"], task["socket"] or False)
        seconds = time.perf_counter() - start
        reply(deliveries=done, seconds=seconds, preparations=preparations, reads=reads)


# PyTorch's worker processes may import this file again.
if __name__ == "__main__":
    main()
