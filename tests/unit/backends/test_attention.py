"""Attention of a pass against the formula, written down once more in fp64 with no blocks, groups or caches."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.backends.kv import BLOCK, SequenceKV, place
from forerun.backends.reference.attention import attend, groups_of
from forerun.core.draft import EMPTY, ROOT, Draft

HEADS, KV_HEADS, SIZE = 6, 2, 16
WIDE = Draft(tuple(range(90)), (ROOT, 0, 1, *(n // 3 for n in range(3, 90))))
DRAFTS = {
    "none": EMPTY,
    "chain": Draft.chain(range(70)),
    "siblings": Draft((1, 2, 3), (ROOT, ROOT, ROOT)),
    "wide": WIDE,
    "long branch": Draft(tuple(range(151)), (ROOT, *range(-1, 149))),
}


def naive(
    q: NDArray[np.float64], k: NDArray[np.float64], v: NDArray[np.float64], start: int, draft: Draft, window: int
) -> NDArray[np.float64]:
    """Rows of one feed with keys and values of all slots `[slots, heads, size]`, row by row."""
    input_tokens = len(q) - len(draft)
    out = np.empty_like(q)
    for row in range(len(q)):
        slots = list(range(start + min(row + 1, input_tokens)))
        if row >= input_tokens:
            slots += [start + input_tokens + node for node in draft.path_to(row - input_tokens)]
        slots = slots[-window:] if window else slots
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            scores = k[slots, group] @ q[row, head]
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ v[slots, group] / weights.sum()
    return out


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("window", [0, 5, 64, 100])
@pytest.mark.parametrize(("start", "input_tokens"), [(0, 1), (0, 130), (61, 2), (63, 1), (200, 70)])
def test_equals_the_formula(draft: Draft, window: int, start: int, input_tokens: int) -> None:
    rng = np.random.default_rng(start)
    rows = input_tokens + len(draft)
    k, v = (rng.standard_normal((start + rows, KV_HEADS, SIZE)).astype(np.float32) for _ in range(2))
    q = rng.standard_normal((rows, HEADS, SIZE)).astype(np.float32)
    kv = SequenceKV(None, 1, KV_HEADS, SIZE)
    kv.begin(start, 0)
    kv.write(0, k[:start], v[:start])
    kv.keep(())
    kv.begin(input_tokens, len(draft))
    kv.write(0, k[start:], v[start:])
    placement = place(start, input_tokens, draft)
    found = np.full((rows, KV_HEADS, HEADS // KV_HEADS, SIZE), np.nan, np.float32)
    for group in groups_of(kv, placement, 0):
        assert group.start(window) % BLOCK == 0
        mine = q[group.rows].reshape(-1, KV_HEADS, HEADS // KV_HEADS, SIZE)
        found[group.rows] = attend(group, 0, mine, group.hidden(window), window)
    expected = naive(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64), start, draft, window)
    assert np.abs(found.reshape(expected.shape) - expected).max() < 2e-5
