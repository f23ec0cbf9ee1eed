"""The floor under a pass: memory must deliver the weights once, and the cores must multiply them for every row.

floor(rows) = max(bytes / bandwidth, rows * multiply-adds / integer peak)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from forerun.core.model import Model
from forerun.weights import Weights


@dataclass(frozen=True)
class Limits:
    """What this machine and this file allow.

    bandwidth: bytes per second, all threads reading. integer_peak: int8 multiply-adds per second, 0 where not measured.
    weight_bytes: of the matrices that a one-row pass reads, in the file's own encoding. macs: multiply-adds per row.
    """

    bandwidth: float
    integer_peak: float
    weight_bytes: int
    macs: int

    def floor(self, rows: int) -> float:
        """Seconds below which no pass of so many rows can come here."""
        compute = rows * self.macs / self.integer_peak if self.integer_peak else 0.0
        return max(self.weight_bytes / self.bandwidth, compute)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        """One line for people."""
        peak = f", the cores {self.integer_peak / 1e9:.0f} G multiply-adds/s" if self.integer_peak else ""
        return (
            f"Memory delivers {self.bandwidth / 1e9:.1f} GB/s{peak}; a pass reads {self.weight_bytes / 1e6:.0f} MB of "
            f"weights and multiplies {self.macs / 1e9:.2f} G for each row: no pass can be quicker than the floor."
        )


def limits_of(model: Model, weights: Weights | None) -> Limits:
    """Probe the machine and count the file's matrices. A model without a file (the toy) counts as nothing."""
    weight_bytes, macs = (0, 0) if weights is None else _matrices(weights)
    bandwidth, peak = _probes(getattr(model, "threads", 1))
    return Limits(bandwidth, peak, weight_bytes, macs)


def _matrices(weights: Weights) -> tuple[int, int]:
    tied = weights.spec.tied
    read = [
        tensor
        for name, tensor in weights.tensors.items()
        if len(tensor.shape) == 2 and (name != "embed" or tied)  # an untied embedding is looked up, not multiplied
    ]
    return sum(tensor.nbytes for tensor in read), sum(tensor.shape[0] * tensor.shape[1] for tensor in read)


def _probes(threads: int) -> tuple[float, float]:
    """The compiled core's probes; without them, numpy's reading speed and no integer peak."""
    try:
        from forerun.backends.cpu import _core as core

        return core.probe_bandwidth(threads), core.probe_integer_peak(threads)
    except ImportError:
        data = np.ones(2**26, dtype=np.float32)
        return data.nbytes / _best(lambda: float(data.sum())), 0.0


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
