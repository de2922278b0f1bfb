"""How much the suite does: a little by default, all of it with ``FOREBAY_TEST_LONG=1``."""

import os

LONG = os.environ.get("FOREBAY_TEST_LONG", "") not in ("", "0")


def amount(short, full):
    """``full`` in a long run, else ``short``."""
    return full if LONG else short
