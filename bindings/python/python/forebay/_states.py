"""What a loader has received, as plain data: saved, loaded, and merged over ranks."""

from __future__ import annotations

import base64
import json
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import _native
from .errors import InvalidError, VersionError

if TYPE_CHECKING:
    from .loader import DataLoader

#: Version of the format.
VERSION = 3


def save(loader: DataLoader) -> dict[str, Any]:
    """What was received, exactly: small, JSON-safe, valid at any time; see ``load_state_dict``."""
    start = loader._generator_state
    if start is None and (generator := loader._sampler_generator()) is not None:
        start = encoded(generator)  # the coming epoch begins where the generator stands
    received, own, rank = loader._received, None, None
    if loader._fixed and loader._own_steps:
        # Whole steps of one rank say what all ranks have, where none goes its own way.
        if (isinstance(loader.order, str) or loader.order == 0) and loader.on_error != "skip":
            received = received.after(loader._rank_json(), len(loader.dataset), loader._own_steps)
        else:
            own = json.loads(loader._own.json()) | {"steps": loader._own_steps}
            rank = json.loads(loader._rank_json())
    return {
        "version": VERSION,
        "dataset": loader.dataset.fingerprint,
        "samples": len(loader.dataset),
        "seed": loader.seed,
        "shuffle": loader.shuffle,
        "epoch": loader._epoch,
        "step": loader._step,
        "received": json.loads(received.json()),
        "own": own,
        "rank": rank,
        "generator": start,
        "stream": loader._clock(),
        "quarantine": [[f["sample"], f["path"], f["stage"], f["cause"]] for f in loader.quarantine],
    }


def load(loader: DataLoader, state: dict[str, Any]) -> None:
    """Make the next ``iter()`` go on after what ``state`` says was received."""
    version = state.get("version") if isinstance(state, dict) else None
    if not isinstance(version, int):
        raise InvalidError("this is not a state of a forebay loader")
    if version > VERSION:
        raise VersionError(f"state version {version} is newer than this Forebay understands; upgrade Forebay")
    try:
        samples, fingerprint = int(state["samples"]), str(state["dataset"])
        seed, epoch = operator.index(state["seed"]), operator.index(state["epoch"])
        shuffle, generator = bool(state["shuffle"]), state["generator"]
        received_text = json.dumps(state["received"])
        # Not in versions 1 and 2.
        step, own, rank = operator.index(state.get("step", 0)), state.get("own"), state.get("rank")
        own_steps = 0 if own is None else operator.index(own["steps"])
        if min(step, own_steps) < 0:
            raise ValueError(step)
        failures = [(operator.index(s), str(p), str(g), str(c)) for s, p, g, c in state["quarantine"]]
        if generator is not None:
            base64.b64decode(generator, validate=True)
        stream = state.get("stream")  # not in version 1
        if stream is not None:
            stream = (operator.index(stream[0]), operator.index(stream[1]))
            if not all(0 <= number < 1 << 64 for number in stream):
                raise ValueError(stream)
    except (KeyError, IndexError, TypeError, ValueError) as problem:
        raise InvalidError(f"the state is damaged: {problem!r}") from problem
    n = len(loader.dataset._native)
    if any(not 0 <= failure[0] < n for failure in failures):
        raise InvalidError(f"the state is damaged: a sample in quarantine is not below {n}")
    if epoch < 0 or not 0 <= seed < 1 << 64:
        raise InvalidError(f"the state is damaged: epoch {epoch}, seed {seed}")
    if (samples, fingerprint) != (len(loader.dataset), loader.dataset.fingerprint):
        raise InvalidError(
            f"the state belongs to another dataset ({samples} samples, {fingerprint}); "
            f"this one has {len(loader.dataset)} samples, {loader.dataset.fingerprint}"
        )
    if shuffle != loader.shuffle:
        raise InvalidError(f"the state was made with shuffle={shuffle}")
    if own is not None and rank != json.loads(loader._rank_json()):
        raise InvalidError(
            f"this state is what one rank had alone ({rank}), and not this one ({loader._rank_json()}); "
            "load forebay.merge_states() of all ranks"
        )
    known = loader._own_order and loader.replay is None
    received = _native.ReceivedSet(received_text, len(loader.dataset) if known else 1 << 63)
    alone = _native.ReceivedSet(None if own is None else json.dumps(own), len(loader.dataset))

    if seed != loader.seed:
        loader.close()
        loader.seed = seed
    loader.set_epoch(epoch)
    loader._received, loader._resuming, loader._generator_state = received, True, generator
    loader._own, loader._own_steps, loader._step = alone, own_steps, step
    loader._stream = stream
    loader._failures, loader._reported = failures, {failure[0] for failure in failures}
    if loader._job is not None:
        loader._job.set_quarantine(failures)


def encoded(generator: Any) -> str:
    """Where a torch generator stands."""
    return base64.b64encode(bytes(generator.get_state().tolist())).decode()


def merge_states(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One state of a job out of those of all its ranks, taken after the same step.

    Needed only where no daemon deals and ranks do not stop after whole steps in strict order; else every
    rank's state is that of the job, and this returns it.
    """
    parts = list(states)
    if not parts:
        raise ValueError("merge_states() needs the states of all ranks")
    first = parts[0]
    same = ("version", "dataset", "samples", "seed", "shuffle", "epoch")
    for name in same:
        if any(part.get(name) != first.get(name) for part in parts):
            raise InvalidError(f"the states differ in {name}; take them in the same epoch of one job")
    alone = [part for part in parts if part.get("own") is not None]
    if not alone:
        furthest = max(parts, key=lambda part: _native.ReceivedSet(json.dumps(part["received"])).count())
        return {**furthest, "quarantine": _failed(parts)}
    ranks = {part["rank"]["rank"] for part in alone}
    whole = len(alone) < len(parts)
    if not whole and len(ranks) < alone[0]["rank"]["ranks"]:
        raise InvalidError(f"there are states of ranks {sorted(ranks)} of {alone[0]['rank']['ranks']}")
    total = _native.ReceivedSet(json.dumps(first["received"]))
    for part in parts:
        base = _native.ReceivedSet(json.dumps(part["received"]))
        total.absorb(base)
        if part.get("own") is not None:
            own = _native.ReceivedSet(json.dumps(part["own"]))
            base.merge_rank(json.dumps(part["rank"]), part["samples"], own, total)
    merged = {**first, "received": json.loads(total.json()), "own": None, "rank": None}
    return {**merged, "quarantine": _failed(parts)}


def _failed(states: list[dict[str, Any]]) -> list[list[Any]]:
    return list({row[0]: row for state in states for row in state["quarantine"]}.values())
