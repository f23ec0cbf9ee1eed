"""What the cells of a serving benchmark add up to: a row for each mode under each load, compared repeat by repeat."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.bench.latency import METRICS, percentiles, values
from forerun.bench.serving import AUTO, OFF, ON, Cell

_RESAMPLES, _INTERVAL = 2000, (2.5, 97.5)


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as another mode: the median over repeats, and the 95 % interval of resampled medians (NaN for
    fewer than three repeats)."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, found: Sequence[float]) -> Ratio:
        nan = float("nan")
        if len(found) < 3:
            return cls(statistics.median(found) if found else nan, nan, nan)
        drawn = np.random.default_rng(0).choice(found, (_RESAMPLES, len(found)))
        low, high = np.percentile(np.median(drawn, axis=1), _INTERVAL)
        return cls(statistics.median(found), float(low), float(high))

    def as_dict(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Row:
    """One mode under one load.

    failures: how many requests failed, by reason. compared: answers whose text was compared with that of `off`.
    different: those of them with another text; the times of the repeat that one is in do not count.
    tokens_per_second: of all streams together, the median over repeats.
    off, best: times as fast as `off`, and as the better of `off` and `on`; in an open loop, where arrivals decide the tokens
        a second, by seconds of E2EL a token. good: requests a second that met the objective, and their share of all.
    live, client, others: as in Cell, means over repeats.
    """

    mode: str
    streams: int
    requests: int
    failures: Mapping[str, int]
    compared: int
    different: int
    rate: float | None
    tokens_per_second: float
    off: Ratio
    best: Ratio
    latencies: Mapping[str, Mapping[str, float]]
    good: tuple[float, float]
    live: float
    client: float
    others: float

    @property
    def sound(self) -> bool:
        """Whether every request was answered with the text that it should have."""
        return not self.failures and not self.different

    def as_dict(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "streams": self.streams,
            "requests": self.requests,
            "failed": sum(self.failures.values()),
            "failures": dict(self.failures),
            "compared": self.compared,
            "different": self.different,
            "request_rate": self.rate,
            "output_tokens_per_second": self.tokens_per_second,
            "times_off": self.off.as_dict(),
            "times_best": self.best.as_dict(),
            "latency_s": {name: dict(found) for name, found in self.latencies.items()},
            "goodput_requests_per_second": self.good[0],
            "good_share": self.good[1],
            "live_streams": self.live,
            "client_cores": self.client,
            "other_cores": self.others,
        }


def tabulate(cells: Sequence[Cell], slo: Mapping[str, float]) -> list[Row]:
    """A row for each load and mode, in the order of the cells' loads, `off` first."""
    by_load: dict[int, dict[str, list[Cell]]] = {}
    for cell in cells:
        by_load.setdefault(cell.streams, {}).setdefault(cell.mode, []).append(cell)
    rows = []
    for modes in by_load.values():
        off = {cell.repeat: cell for cell in modes.get(OFF, ())}
        counted = {mode: {c.repeat: c for c in found if _counts(c, off)} for mode, found in modes.items()}
        reference = max((OFF, ON), key=lambda mode: _ratio(counted.get(mode, {}), counted[OFF]).median)
        for mode in sorted(modes, key=lambda mode: (mode != OFF, mode != ON, mode != AUTO)):
            rows.append(_row(modes[mode], off, counted[mode], counted[OFF], counted.get(reference, {}), slo))
    return rows


def _counts(cell: Cell, off: Mapping[int, Cell]) -> bool:
    """Whether a cell's times are of the text that was to be written."""
    return bool(cell.tokens) and cell.repeat in off and all(cell.same_text(off[cell.repeat]))


def _row(
    cells: Sequence[Cell],
    off: Mapping[int, Cell],
    counted: Mapping[int, Cell],
    plain: Mapping[int, Cell],
    reference: Mapping[int, Cell],
    slo: Mapping[str, float],
) -> Row:
    asked = [answer for cell in cells for answer in cell.answers]
    answers = [answer for cell in counted.values() for answer in cell.answers]
    nan = float("nan")
    seconds = sum(cell.seconds for cell in counted.values())
    same = [same for cell in cells if cell.repeat in off for same in cell.same_text(off[cell.repeat])]
    good = sum(answer.meets(slo) for answer in answers)
    return Row(
        mode=cells[0].mode,
        streams=cells[0].streams,
        requests=len(asked),
        failures=Counter(answer.failure for answer in asked if answer.failure is not None),
        compared=len(same),
        different=same.count(False),
        rate=cells[0].rate,
        tokens_per_second=statistics.median([cell.tokens / cell.seconds for cell in counted.values()] or [nan]),
        off=_ratio(counted, plain),
        best=_ratio(counted, reference),
        latencies={metric: percentiles(values(answers, metric)) for metric in METRICS},
        good=(good / seconds, good / len(answers)) if answers else (nan, nan),
        live=statistics.mean([cell.live for cell in counted.values()] or [nan]),
        client=statistics.mean(cell.client for cell in cells),
        others=statistics.mean(cell.others for cell in cells),
    )


def _ratio(cells: Mapping[int, Cell], others: Mapping[int, Cell]) -> Ratio:
    """How many times as fast as the others, from pairs of the same repeat."""
    return Ratio.of([_pace(others[repeat]) / _pace(cell) for repeat, cell in cells.items() if repeat in others])


def _pace(cell: Cell) -> float:
    """Seconds a token: of the whole load in a closed loop, of each stream's own in an open one."""
    return (cell.seconds if cell.rate is None else sum(answer.e2el for answer in cell.answered)) / cell.tokens
