"""Min-p, top-k and top-p, exactly and without sorting a vocabulary."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from forerun.core.sampling import Sampling

Scores = NDArray[np.float32]

# Looking for the nucleus starts with the ids within these distances of the best, and for the highest scores with the best
# of so many: any values give the same result, these are fast.
_NEAR = (4.0, 12.0, math.inf)
_FOLDS = 64


def truncate(row: Scores, sampling: Sampling) -> Scores:
    """The scores `[vocab]` with all but the likely tokens at -inf: min-p, then top-k, then top-p."""
    if sampling.min_p > 0.0:
        row = np.where(row >= row.max() + np.float32(math.log(sampling.min_p)), row, np.float32(-np.inf))
    if 0 < sampling.top_k < len(row):
        row = _only(row, largest(row, sampling.top_k))
    if sampling.top_p < 1.0:
        row = _only(row, _nucleus(row, sampling.top_p))
    return row


def _only(row: Scores, ids: NDArray[np.int64]) -> Scores:
    kept = np.full_like(row, -np.inf)
    kept[ids] = row[ids]
    return kept


def largest(row: Scores, count: int, within: float = math.inf) -> NDArray[np.int64]:
    """The ids of the `count` highest scores, ties to the lower id; none that are more than `within` below the best.

    The row is folded, and the best of each column found: the `count` highest scores are not below the column that is
    `count`th best, so few columns are left to be looked at.
    """
    columns = len(row) // _FOLDS
    if columns < 2 * count:
        ids = np.flatnonzero(row >= row.max() - within)
    else:
        folded = columns * _FOLDS
        peaks = row[:folded].reshape(_FOLDS, columns).max(axis=0)
        best = max(float(peaks.max()), float(row[folded:].max(initial=-np.inf)))
        floor = max(best - within, float(np.partition(peaks, columns - count)[columns - count]))
        near = np.arange(0, folded, columns)[:, None] + np.flatnonzero(peaks >= floor)
        ids = np.concatenate([near.ravel(), np.arange(folded, len(row))])
        ids = ids[row[ids] >= floor]
    if len(ids) <= count:
        return ids
    values = row[ids]
    return _down_to(ids, values, np.partition(values, len(values) - count)[len(values) - count], count)


def _nucleus(row: Scores, top_p: float) -> NDArray[np.int64]:
    """Smallest set of most likely ids whose mass reaches top_p. Sorts only those near the best if they suffice."""
    ids = np.flatnonzero(row > -np.inf)
    values = row[ids]
    best = float(values.max())
    needed = top_p * float(np.exp(values.astype(np.float64) - best).sum())
    for distance in _NEAR:
        falling = np.sort(values[values >= best - distance])[::-1]
        mass = np.cumsum(np.exp(falling.astype(np.float64) - best))
        if mass[-1] >= needed:
            break
    count = min(int(np.searchsorted(mass, needed)) + 1, len(falling))
    return _down_to(ids, values, falling[count - 1], count)


def _down_to(ids: NDArray[np.int64], values: Scores, last: np.float32, count: int) -> NDArray[np.int64]:
    """The `count` ids whose values are at least `last`, the lower ones of those that equal it."""
    above = ids[values > last]
    return np.concatenate([above, ids[values == last][: count - len(above)]])
