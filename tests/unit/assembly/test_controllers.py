"""Costs are measured once for a model as it runs here, and again where it runs otherwise."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forerun.assembly import controllers
from forerun.backends.cpu import missing_core
from forerun.backends.cpu.options import CpuOptions
from forerun.backends.toy import ToyModel, random_logits
from forerun.controllers.costs import CostCurve
from tests.unit.backends.tiny_cpu import tiny_cpu


class Settled(ToyModel):
    settings: tuple[object, ...] = ()


def source(*settings: object) -> Any:
    model = Settled(20, 2, random_logits(20, 2, 6.0))
    model.settings = settings
    return SimpleNamespace(stamp=(Path("model.gguf"), 1, 2), name="toy", model=model)


def test_a_curve_is_measured_once_for_each_way_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(model: Settled, **how: Any) -> dict[int, float]:
        measured.append(model.settings)
        return {1: 1.0 + len(measured)}

    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    monkeypatch.setattr(controllers, "measure", measure)
    curves: list[CostCurve] = [
        controllers.cost_curve(source(2, how)) for how in ("fp16", "fp16", "fp32", "fp16", "fp32")
    ]
    assert measured == [(2, "fp16"), (2, "fp32")]
    assert [curve(1) for curve in curves] == [2.0, 2.0, 3.0, 2.0, 3.0]


@pytest.mark.skipif(missing_core() is not None, reason="the compiled core was not built")
def test_what_changes_the_cost_of_a_pass_is_among_the_settings() -> None:
    ways = (CpuOptions(threads=1), CpuOptions(threads=2), CpuOptions(threads=1, kv_dtype="fp32"))
    assert len({tiny_cpu("llama", options=options).settings for options in ways}) == len(ways)
    quantized = tiny_cpu("llama", kind="F16", options=CpuOptions(threads=1, quantize="w8"))
    assert quantized.settings != tiny_cpu("llama", kind="F16", options=CpuOptions(threads=1)).settings
