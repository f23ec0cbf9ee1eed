"""The floor under a pass counts the bytes and the products that it cannot do without."""

from __future__ import annotations

import pytest

from forerun.assembly.models import find_model
from forerun.bench import limits
from forerun.bench.limits import Limits, limits_of
from forerun.config import Config
from tests.unit.assembly.found import weights


@pytest.mark.parametrize(("rows", "seconds"), [(1, 2.0), (4, 2.0), (5, 2.5), (8, 4.0)])
def test_memory_binds_first_and_then_the_cores(rows: int, seconds: float) -> None:
    assert Limits(bandwidth=50.0, integer_peak=10.0, weight_bytes=100, macs=5).floor(rows) == seconds


def test_without_a_peak_memory_alone_binds() -> None:
    told = Limits(bandwidth=50e9, integer_peak=0.0, weight_bytes=10**9, macs=10**9)
    assert told.floor(1000) == 0.02
    assert told.describe().startswith("Memory delivers 50.0 GB/s; a pass reads 1000 MB of weights")


def test_what_a_pass_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_probes", lambda threads: (1.0, 2.0))
    model = find_model("toy", Config()).model
    layer = 64 * 64 * 2 + 32 * 64 * 2 + 96 * 64 * 3  # q and o, k and v, gate, up and down
    for tied in (False, True):
        opened = weights(layers=2, tied=tied)
        # Every row multiplies a head; an embedding of its own is only looked up.
        assert limits_of(model, opened) == Limits(1.0, 2.0, 2 * (2 * layer + 257 * 64), 2 * layer + 257 * 64)
    assert limits_of(model, None) == Limits(1.0, 2.0, 0, 0)


def test_the_machine_is_probed() -> None:
    bandwidth, peak = limits._probes(1)
    assert bandwidth > 0
    assert peak >= 0
