"""What a pass costs on this machine: seconds by the number of rows, measured at load and corrected while running.

Only ratios matter to the controllers (v(n) = T(n) / T(1)), but they must follow the machine: a longer context, a second
program on the other core, a batch. So each bucket of rows keeps its own estimate, and each observed pass also moves the
others by what it says of the machine as a whole.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence

from forerun.core.draft import Draft
from forerun.core.model import ForwardInput, Model

# Row counts that are measured; between them the curve is a straight line, past the last it goes on with its slope.
GRID = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
# Weight of one observed pass in its own bucket, 0 to 1; a measurement at load counts as so many passes, so the first ones weigh
# more.
_LOCAL = 0.1
_MEASURED = 4.0
# Weight of one observed pass in all other buckets, 0 to 1.
_GLOBAL = 0.03
# No pass counts as more than this times what was expected: something else had the processor.
_OUTLIER = 2.0


class CostCurve:
    """T(rows) in seconds, never falling with rows. Starts from measurements `{rows: seconds}`, at least one."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        if not measured or any(rows < 1 or not 0.0 < seconds < 1e6 for rows, seconds in measured.items()):
            raise ValueError(f"a cost curve needs positive measurements, got {dict(measured)}")
        points = sorted(measured.items())
        self._seconds = [_interpolate(points, rows) for rows in GRID]
        self._seen = [_MEASURED] * len(GRID)
        # Asked for dozens of times between two passes, so it is made once after each.
        self._points = self._rising()

    def __call__(self, rows: float) -> float:
        """Seconds of one pass over so many rows."""
        return _interpolate(self._points, max(1.0, rows))

    def ratio(self, rows: int) -> float:
        """v(rows) = T(rows) / T(1)."""
        return self(rows) / self(1)

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a pass that was run."""
        expected = self(rows)
        off = min(max(seconds / expected, 1.0 / _OUTLIER), _OUTLIER)
        for index, at in enumerate(GRID):
            # Neighboring grid points share what a pass between them says, by how near they are.
            near = max(0.0, 1.0 - abs(at - rows) / max(1.0, 0.5 * min(at, rows)))
            self._seen[index] += near
            weight = _GLOBAL + (max(_LOCAL, 1.0 / self._seen[index]) - _GLOBAL) * near
            self._seconds[index] *= off**weight
        self._points = self._rising()

    def as_dict(self) -> dict[int, float]:
        """The curve at its grid points, for a profile."""
        return dict(self._points)

    def _rising(self) -> list[tuple[int, float]]:
        """(rows, seconds) at the grid points; more rows never cost less."""
        return list(zip(GRID, itertools.accumulate(self._seconds, max), strict=True))


def measure(model: Model, *, seconds: float = 2.0, context: int = 128, largest: int = 32) -> dict[int, float]:
    """Time passes of 1 to `largest` rows over a text of `context` tokens: medians of interleaved repeats, by rows.

    Takes about `seconds`; a slow model gets fewer repeats, then fewer sizes, but always 1 row and a few more. Nothing is
    committed.
    """
    context = min(context, model.info.context // 2)
    kv = model.open()
    try:
        with model.forward([ForwardInput(kv, (0,) * context, logits=False)]) as output:
            output.commit(0, ())
        sizes = [rows for rows in (1, 4, 8, 2, 16, 6, 32, 3, 12, 24) if rows <= largest]
        times: dict[int, list[float]] = {}
        _time(model, [kv], 1)  # the first pass pays for buffers and pages
        deadline = time.perf_counter() + seconds
        for repeat in range(9):
            for rows in sizes:
                if time.perf_counter() > deadline and (repeat > 0 or len(times) >= 3):
                    return {rows: statistics.median(found) for rows, found in times.items()}
                times.setdefault(rows, []).append(_time(model, [kv], rows))
        return {rows: statistics.median(found) for rows, found in times.items()}
    finally:
        kv.close()


def _time(model: Model, kvs: Sequence[object], rows: int) -> float:
    inputs = [ForwardInput(kv, (0,), Draft.chain([0] * (rows - 1))) for kv in kvs]  # type: ignore[arg-type]
    started = time.perf_counter()
    with model.forward(inputs):
        return time.perf_counter() - started


def _interpolate(points: Sequence[tuple[int, float]], rows: float) -> float:
    """On the line through the two nearest points; past the last, along the last line that rises."""
    if len(points) == 1 or rows <= points[0][0]:
        return points[0][1]
    for (low, cost), (high, next_cost) in itertools.pairwise(points):
        if rows <= high:
            return cost + (next_cost - cost) * (rows - low) / (high - low)
    (before, cost), (last, last_cost) = points[-2:]
    slope = (last_cost - cost) / (last - before)
    return last_cost + max(slope, 0.0) * (rows - last)
