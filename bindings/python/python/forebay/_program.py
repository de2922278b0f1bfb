"""Finds the ``forebay`` program: ``FOREBAY_BIN``, then the one in this package, then PATH."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def find() -> str | None:
    """Path of the program, or None."""
    chosen = os.environ.get("FOREBAY_BIN")
    if chosen:
        return chosen
    packaged = Path(__file__).with_name("bin") / "forebay"
    if packaged.is_file():
        return str(packaged)
    found = shutil.which("forebay")
    # The console script of this package is not the program.
    return found if found and Path(found).resolve() != Path(sys.argv[0]).resolve() else None


def main() -> None:
    """Run the program in place of this process."""
    program = find()
    if program is None:
        sys.exit(
            "error: the forebay program was not found\nhint: set FOREBAY_BIN, or build it with `make build`"
        )
    os.environ.setdefault("FOREBAY_PYTHON", sys.executable)
    os.execv(program, [program, *sys.argv[1:]])
