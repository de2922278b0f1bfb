"""The worker's end of the bench protocol, the first part of every side's script.

One JSON object per line on stdin and stdout. A side follows with `prepare()` (untimed: imports,
conversion), `first()` (a new loader, one epoch) and `later()` (batches without end), and the bench
with the commands it gives to `serve`. Standard output is handed to the protocol alone: whatever a
library prints goes to stderr.
"""

import json
import os
import sys
import time
import traceback

CONFIG = json.loads(sys.argv[1])
DATA, CACHE, OUTPUT = CONFIG["data"], CONFIG["cache"], CONFIG["output"]
BATCH, SIZE, THREADS, SEED = CONFIG["batch"], CONFIG["size"], CONFIG["threads"], CONFIG["seed"]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
MEAN_255, STD_255 = [255 * m for m in MEAN], [255 * s for s in STD]
# Where a job finds what is shared.
ADDRESS = None
# Whether a loader waits for its next turn instead of being made anew.
KEEP = CONFIG["stays"]
# Whether a process has only one turn.
FRESH = False
# Whether its reads go through Python or torchvision, so that a throttle can slow them down.
OBEYS = True

# A throttle is told by the bench, or stands in the environment already.
if CONFIG["throttle"]:
    os.environ["FOREBAY_THROTTLE"] = CONFIG["throttle"]

_replies = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def reply(**fields):
    _replies.write(json.dumps(fields) + "\n")
    _replies.flush()


def transform():
    """Torchvision's steps, for sides that take them."""
    from torchvision import transforms

    finish = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    if OUTPUT == "uint8":
        finish = [transforms.PILToTensor()]
    return transforms.Compose(
        [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), *finish]
    )


def counted():
    """What a side counts: `preparations` and `deliveries` of the loader at hand."""
    return {}


def check(images):
    """Every side must hand over the same thing: a contiguous NCHW torch tensor."""
    import torch

    want = (BATCH, 3, SIZE, SIZE)
    dtype = getattr(torch, OUTPUT)
    if tuple(images.shape) != want or images.dtype != dtype or not images.is_contiguous():
        raise RuntimeError(
            f"got {tuple(images.shape)} {images.dtype} with strides {images.stride()}, "
            f"not a contiguous {OUTPUT} batch of {want}"
        )


def serve(**commands):
    """Prepares, then answers commands."""
    throttled = os.environ.get("FOREBAY_THROTTLE")
    if throttled and not OBEYS:
        reply(error="its own file readers would not obey the throttle")
        return
    try:
        version = prepare()
        if throttled:
            patch(DATA, CACHE)
    except ImportError as error:
        reply(missing=str(error))
        return
    except Exception as error:
        traceback.print_exc()
        reply(error=f"{type(error).__name__}: {error}")
        return
    reply(ready=version)
    obey(commands)


def obey(commands):
    """Answers commands until stdin ends or one fails; does not return."""
    while line := sys.stdin.readline():
        command = json.loads(line)
        try:
            commands[command.pop("cmd")](**command)
        except Exception as error:
            traceback.print_exc()
            reply(error=f"{type(error).__name__}: {error}")
            break
    # Worker processes and loader threads have nothing left to say.
    os._exit(0)
