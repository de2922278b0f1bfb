"""Who a process is to a daemon and to the other ranks of its job."""

from __future__ import annotations

import os
import sys


def ranks() -> tuple[int, int]:
    """Rank and number of ranks of this process, as torch or whoever started it says."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, ranks = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(ranks)) if rank.isdecimal() and ranks.isdecimal() else (0, 1)


def scheduled() -> str | None:
    """What all ranks of a job have in common."""
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    if run and run != "none":
        return run
    # Two runs of one step or shell meet at different ports.
    port = f" port {os.environ['MASTER_PORT']}" if os.environ.get("MASTER_PORT") else ""
    if slurm := os.environ.get("SLURM_JOB_ID"):
        return f"{slurm}.{os.environ.get('SLURM_STEP_ID', 0)}{port}"
    return f"parent {process(os.getppid())}{port}"


def on_one_machine(world_size: int) -> bool:
    """Whether all ranks are here, as far as ``torchrun`` tells."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return not local.isdecimal() or int(local) >= world_size


def process(pid: int) -> str:
    """A process, told apart from one of the same number in another container."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            started = stat.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        started = "0"
    return f"{pid}.{started}"
