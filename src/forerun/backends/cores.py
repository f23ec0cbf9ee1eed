"""How many threads a backend starts."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def capped(threads: int | None) -> int | None:
    """As many threads as were asked for, and no more than there are cores: waiting for the surplus costs all the speed."""
    return None if threads is None else min(threads, usable_cores())
