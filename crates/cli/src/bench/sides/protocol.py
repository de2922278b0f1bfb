"""The worker's end of the bench protocol; each side's script follows this text in one file.

One JSON object per line on stdin and stdout. A side defines `prepare()` (untimed: imports,
conversion), `first()` (a new loader, one epoch) and `later()` (batches without end) and calls
`serve`. Standard output is handed to the protocol alone: whatever a library prints goes to stderr.
"""

import json
import os
import sys
import time
import traceback

CONFIG = json.loads(sys.argv[1])
DATA, CACHE = CONFIG["data"], CONFIG["cache"]
BATCH, SIZE, THREADS, SEED = CONFIG["batch"], CONFIG["size"], CONFIG["threads"], CONFIG["seed"]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
MEAN_255, STD_255 = [255 * m for m in MEAN], [255 * s for s in STD]

_replies = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def reply(**fields):
    _replies.write(json.dumps(fields) + "\n")
    _replies.flush()


def check(images):
    """Every side must hand over the same thing: a contiguous float32 NCHW torch tensor."""
    import torch

    want = (BATCH, 3, SIZE, SIZE)
    if tuple(images.shape) != want or images.dtype != torch.float32 or not images.is_contiguous():
        raise RuntimeError(
            f"got {tuple(images.shape)} {images.dtype} with strides {images.stride()}, "
            f"not a contiguous float32 batch of {want}"
        )


def serve(prepare, first, later):
    """Answers commands until stdin ends. `first` and `later` return iterables of image batches."""
    try:
        version = prepare()
    except ImportError as error:
        reply(missing=str(error))
        return
    except Exception as error:
        traceback.print_exc()
        reply(error=f"{type(error).__name__}: {error}")
        return
    reply(ready=version)
    stream = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["cmd"] == "epoch":
                images = 0
                start = time.perf_counter()
                for batch in first():
                    images += len(batch)
                reply(images=images, seconds=time.perf_counter() - start)
                check(batch)
                del batch
            elif command["cmd"] == "round":
                if stream is None:
                    stream = iter(later())
                    check(next(stream))
                for _ in range(command["skip"]):
                    next(stream)
                start = time.perf_counter()
                images = 0
                for _ in range(command["batches"]):
                    images += len(next(stream))
                reply(images=images, seconds=time.perf_counter() - start)
            else:
                reply(error=f"unknown command {command['cmd']!r}")
        except Exception as error:
            traceback.print_exc()
            reply(error=f"{type(error).__name__}: {error}")
            return
    # Worker processes and loader threads have nothing left to say.
    os._exit(0)


