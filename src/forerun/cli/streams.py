"""Standard streams that are not there (`2>&-`, a service without them) are /dev/null.

Without this, the next file that is opened gets the number of the missing one, and what is meant for people ends up in it.
"""

from __future__ import annotations

import os
import sys

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def fill_gaps() -> None:
    """Open /dev/null in place of each standard stream that is missing. To be called before any file is opened."""
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which is this one, since those below were filled before.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
