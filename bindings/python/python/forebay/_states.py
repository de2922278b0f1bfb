"""States of several ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from . import _native
from .errors import InvalidError


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
