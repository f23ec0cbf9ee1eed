"""What a round's rows of logits say to drafters that run no model: the likeliest ids after each node, found quickly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import ROOT
from forerun.core.outcome import Outcome
from forerun.core.protocols import Floats

# Ids further below the best are looked at only where nearer ones are too few; beyond the last, one in a million, never.
_NEAR = (6.0, 14.0)


def leading(row: Floats, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The `count` likeliest ids of a row `[vocab]`, best first, ties to the lower id, and exp(logit - best) of each.

    Fewer where the others are out of the question; none where the logits are not numbers.
    """
    best = float(row.max())
    if not np.isfinite(best):
        return np.empty(0, dtype=np.int64), np.empty(0)
    ids: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    for distance in _NEAR:
        ids = np.flatnonzero(row >= best - distance)
        if len(ids) >= count:
            break
    values = row[ids]
    order = np.argsort(-values, kind="stable")[:count]
    return ids[order], np.exp(values[order].astype(np.float64) - best)


def read_nodes(outcome: Outcome) -> Iterator[tuple[int, int]]:
    """(row index, the token it follows) of every verified row of a round, rejected nodes too."""
    if outcome.rows is None:
        return
    yield 0, outcome.forced[-1]
    for node, token in enumerate(outcome.draft.tokens):
        yield 1 + node, token


def last_row(outcome: Outcome) -> int:
    """Index of the row from which the bonus came."""
    return 1 + (outcome.path[-1] if outcome.path else ROOT)
