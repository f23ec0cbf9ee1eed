"""Reading rows of logits: the leading ids, as sorting the whole row would give them."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.core.draft import Draft
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult
from forerun.drafters.rows import last_row, leading, read_nodes


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
    result = StepResult(Request([1], Sampling()), (3, 4), draft, (0, 1), (5, 6, 8), rows=rows)
    assert list(read_nodes(result)) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert last_row(result) == 2
    assert last_row(StepResult(result.request, (3,), draft, (), (1,), rows=rows)) == 0
    assert list(read_nodes(StepResult(result.request, (3,), decoded=False))) == []
