"""Reading rows of logits: the leading ids, as sorting the whole row would give them."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.core.draft import Draft
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.rows import leading, verified_rows


@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("size", [3, 8, 500])
def test_leading_is_the_head_of_the_sorted_row(spread: float, size: int) -> None:
    row = (np.random.default_rng(size).standard_normal(size) * spread).astype(np.float32)
    row[0] = row[-1]
    ids, weights = leading(row, 8)
    ranked = np.argsort(-row, kind="stable")[:8]
    assert ids.tolist() == [token for token in ranked.tolist() if row[token] >= row.max() - 14.0]
    np.testing.assert_allclose(weights, np.exp(row[ids].astype(np.float64) - row.max()))


def test_banned_ids_and_broken_rows_are_left_out() -> None:
    row = np.full(20, -np.inf, dtype=np.float32)
    row[[4, 9]] = (1.0, 2.0)
    assert leading(row, 8)[0].tolist() == [9, 4]
    row[3] = np.nan
    assert len(leading(row, 8)[0]) == 0


def test_rows_are_told_by_the_token_they_follow() -> None:
    draft = Draft((5, 6, 7), (-1, 0, -1))
    rows = np.zeros((4, 9), dtype=np.float32)
    result = StepResult(Transcript(Request([1])), (3, 4), draft, (0, 1), (5, 6, 8), rows=rows)
    assert list(verified_rows(result)) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert result.bonus_row == 2
    assert StepResult(result.sequence, (3,), draft, (), (1,), rows=rows).bonus_row == 0
    assert list(verified_rows(StepResult(result.sequence, (3,), decoded=False))) == []
