"""What a step's rows of logits say to drafters that run no model: the likeliest ids after each node, found quickly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from forerun.core.model import Floats
from forerun.core.step import StepResult
from forerun.core.truncation import largest

# One in a million: ids further below the best are out of the question.
_FAR = 14.0


def leading(row: Floats, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The `count` likeliest ids of a row `[vocab]`, best first, ties to the lower id, and exp(logit - best) of each.

    Fewer where the others are out of the question; none where the logits are not numbers.
    """
    ids = largest(row, count, _FAR)
    scores = row[ids].astype(np.float64)
    order = np.lexsort((ids, -scores))
    if not len(order) or not np.isfinite(scores[order[0]]):
        return np.empty(0, dtype=np.int64), np.empty(0)
    return ids[order], np.exp(scores[order] - scores[order[0]])


def verified_rows(result: StepResult) -> Iterator[tuple[int, int]]:
    """(row index, the token it follows) of every verified row of a step, rejected nodes too."""
    if result.rows is None:
        return
    yield 0, result.input_tokens[-1]
    for node, token in enumerate(result.draft.tokens):
        yield 1 + node, token
