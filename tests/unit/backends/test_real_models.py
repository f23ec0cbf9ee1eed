"""Real weights on the reference backend: the same bits in chunks, in trees and in company."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from forerun.backends.kv import SequenceKV
from forerun.backends.reference import ReferenceModel
from forerun.core.draft import ROOT, Draft
from forerun.core.model import ForwardInput
from forerun.models import resolve
from tests.unit.backends.tiny import Floats, contents

TREE = Draft((11, 12, 13, 14, 15, 16), (ROOT, ROOT, 0, 1, 0, 3))


def read(model: ReferenceModel, tokens: Sequence[int], chunks: Sequence[int]) -> tuple[SequenceKV, Floats]:
    """A sequence that has read `tokens` in chunks of the given sizes, and its last row of logits."""
    kv, at, last = model.open(), 0, np.empty(0, np.float32)
    for size in chunks:
        with model.forward([ForwardInput(kv, tuple(tokens[at : at + size]))]) as output:
            last = output.logits(0)[-1].copy()
            output.commit(0, ())
        at += size
    assert at == len(tokens)
    return kv, last


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"])
def test_the_same_bits_however_it_is_read(name: str) -> None:
    model = ReferenceModel.load(resolve(name))
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, model.info.vocab_size, 72)]
    whole, last = read(model, tokens, [72])
    for chunks in ([64, 8], [7] * 10 + [2], [66, *[1] * 6]):
        kv, row = read(model, tokens, chunks)
        assert np.array_equal(row, last)
        assert all(np.array_equal(a, b) for a, b in zip(contents(kv), contents(whole), strict=True))
    branches = whole.fork()
    short, _ = read(model, tokens[:9], [9])
    with model.forward(
        [ForwardInput(short, (5,), TREE), ForwardInput(branches, (7,), TREE), ForwardInput(model.open(), tuple(tokens))]
    ) as output:
        rows = output.logits(1).copy()
        assert np.array_equal(output.logits(2)[-1], last)
        output.commit(1, (1, 3, 5))
    kv, row = read(model, [*tokens, 7, 12, 14, 16], [76])
    assert np.array_equal(rows[6], row)
    assert np.array_equal(rows[5], read(model, [*tokens, 7, 11, 15], [75])[1])
    assert all(np.array_equal(a, b) for a, b in zip(contents(branches), contents(kv), strict=True))
    model.close()
