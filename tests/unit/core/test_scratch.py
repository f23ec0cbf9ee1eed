"""Lent arrays are apart until they are given back, and the distributions written into them are those of fresh ones."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.core.choosing import probs, scores, softmax, untruncated_probs
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.scratch import Scratch
from forerun.core.transcript import Transcript


def test_lent_arrays_are_apart_until_rewound() -> None:
    scratch = Scratch()
    lent = [scratch.array(4) for _ in range(40)]
    assert len({array.ctypes.data for array in lent}) == 40
    scratch.rewind()
    assert scratch.array(4) is lent[0]
    assert len(scratch.array(7)) == 7
    assert scratch.array(4) is lent[2]


@pytest.mark.parametrize("usable", [6, 9])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.7),
        Sampling(temperature=1.3, top_k=3),
        Sampling(temperature=0.9, repetition_penalty=1.2, logit_bias={2: -np.inf}),
        Sampling(temperature=0.0),
    ],
    ids=["one", "warm", "truncated", "adjusted", "greedy"],
)
def test_probabilities_are_softmax_of_scores_but_for_rounding(sampling: Sampling, usable: int) -> None:
    row = np.random.default_rng(1).normal(0, 3, 9).astype(np.float32)
    before, prefix, out = row.copy(), Transcript(Request([1, 2], sampling)).prefix(), np.full(9, 7.0)
    kept = row.copy()
    kept[usable:] = -np.inf
    want = softmax(scores(row, prefix, sampling, usable))
    if sampling.greedy:
        want = np.eye(9)[int(np.argmax(kept))]
    for got in (probs(row, prefix, sampling, usable), probs(row, prefix, sampling, usable, out)):
        assert got.tolist() == pytest.approx(want.tolist(), rel=1e-15, abs=0)
        assert got[usable:].tolist() == [0.0] * (9 - usable)
    neutral = Sampling(temperature=1.0, repetition_penalty=sampling.repetition_penalty, logit_bias=sampling.logit_bias)
    for got in (
        untruncated_probs(row, prefix, sampling, usable),
        untruncated_probs(row, prefix, sampling, usable, out),
    ):
        assert got.tolist() == pytest.approx(softmax(scores(row, prefix, neutral, usable)).tolist(), rel=1e-15, abs=0)
    assert row.tobytes() == before.tobytes()
