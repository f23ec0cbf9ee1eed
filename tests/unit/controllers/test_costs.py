"""The cost curve follows the machine and never says that more rows cost less."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.backends.toy import ToyModel, random_logits
from forerun.controllers import CostCurve, measure


def test_reads_its_measurements_and_draws_lines_between() -> None:
    curve = CostCurve({1: 0.030, 4: 0.033, 8: 0.050})
    assert curve(1) == 0.030
    assert curve(2) == pytest.approx(0.031)
    assert curve(6) == pytest.approx(0.0415)
    assert curve.ratio(8) == pytest.approx(5 / 3)
    assert curve(16) > curve(12) > curve(8)


def test_never_falls_with_rows() -> None:
    curve = CostCurve({1: 0.04, 4: 0.03, 8: 0.05})
    costs = [curve(rows) for rows in range(1, 70)]
    assert costs == sorted(costs)


def test_follows_what_is_observed() -> None:
    curve = CostCurve({1: 1.0, 4: 1.0, 8: 1.0})
    for _ in range(200):
        curve.observe(1, 1.0)
        curve.observe(8, 2.5)
    assert curve(8) == pytest.approx(2.5, rel=0.15)
    assert curve(1) == pytest.approx(1.0, rel=0.15)


def test_one_outlier_moves_little_and_a_slow_machine_moves_all() -> None:
    curve = CostCurve({1: 1.0, 8: 1.5})
    curve.observe(4, 100.0)
    assert curve(4) < 1.4
    curve = CostCurve({1: 1.0, 8: 1.5})
    for _ in range(100):
        curve.observe(2, 3.0)
    assert curve(8) > 2.0


def test_the_first_passes_count_most() -> None:
    """What was measured at load may have been measured on a busy machine."""
    curve = CostCurve({1: 1.0, 8: 1.1})
    for _ in range(8):
        curve.observe(1, 0.6)
        curve.observe(8, 1.0)
    assert curve(8) / curve(1) > 1.4
    before = curve(1)
    for _ in range(30):
        curve.observe(1, 0.6)
    settled = curve(1)
    curve.observe(1, 0.9)
    assert before - settled < 0.15
    assert curve(1) / settled < 1.05


@pytest.mark.parametrize("bad", [{}, {0: 1.0}, {1: 0.0}, {1: float("nan")}])
def test_refuses_nonsense(bad: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="positive measurements"):
        CostCurve(bad)


def test_measures_a_model_and_leaves_nothing_behind() -> None:
    passes: list[int] = []

    class Watched(ToyModel):
        def _check(self, inputs, kvs):  # type: ignore[no-untyped-def]
            passes.append(sum(len(given.input_tokens) + len(given.draft) for given in inputs))
            super()._check(inputs, kvs)

    model = Watched(8, 1, random_logits(8, 1), pages=100)
    found = measure(model, seconds=0.05, largest=8)
    assert {1, 4, 8} <= set(found) <= {1, 2, 3, 4, 6, 8}
    assert all(np.isfinite(seconds) and seconds > 0 for seconds in found.values())
    assert max(passes[1:]) == 8
    assert model.room().free == 100
