"""The cpu backend on real models against the reference decoder, and the same bits with everything switched on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from forerun.backends.cpu import CpuModel, missing_core
from forerun.backends.cpu.options import CpuOptions
from forerun.backends.reference import ReferenceModel
from forerun.core.draft import ROOT, Draft
from forerun.core.model import ForwardInput, Needs
from forerun.models import resolve
from forerun.tokenizers.loading import load_tokenizer
from forerun.weights import Weights, open_weights
from tests.unit.backends.tiny import Floats

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(missing_core() is not None, reason="the compiled core was not built"),
]

PROSE = (
    "The drafter runs ahead and the target reads what it wrote. What the target would have said itself is kept, and the "
    "first token that it would not have said is replaced by its own.\n\n"
    "def accept(draft, choose):\n    kept = []\n    for token in draft:\n        if token != choose(kept):\n"
    "            break\n        kept.append(token)\n    return kept\n"
)


@pytest.fixture(scope="module", params=["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"])
def weights(request: pytest.FixtureRequest) -> Weights:
    return open_weights(resolve(request.param))


@pytest.fixture(scope="module")
def model(weights: Weights) -> Iterator[CpuModel]:
    model = CpuModel.from_weights(weights, options=CpuOptions(threads=2))
    yield model
    model.close()


def loss(logits: Floats, tokens: tuple[int, ...]) -> float:
    """Mean negative log likelihood of each next token."""
    rows = logits[:-1].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    chosen = rows[np.arange(len(rows)), tokens[1:]]
    return float(np.mean(np.log(np.exp(rows).sum(axis=1)) - chosen))


def test_logits_are_the_references_but_for_activations_of_8_bits(weights: Weights, model: CpuModel) -> None:
    """Activations in int8 per group of 32 move logits by a few percent of their spread, and near-ties with them."""
    tokens = tuple(load_tokenizer(weights).encode(PROSE))
    reference = ReferenceModel.from_weights(weights, threads=2)
    rows = []
    for each in (model, reference):
        with each.forward([ForwardInput(each.open(), tokens)], Needs(every_row=True)) as output:
            rows.append(output.logits(0).copy())
    found, wanted = rows
    assert np.sqrt(np.mean((found - wanted) ** 2)) / wanted.std() < 0.06
    assert loss(found, tokens) == pytest.approx(loss(wanted, tokens), rel=0.02)
    top = np.sort(wanted, axis=1)
    clear = top[:, -1] - top[:, -2] > 0.5
    assert clear.mean() > 0.5
    assert np.array_equal(found.argmax(axis=1)[clear], wanted.argmax(axis=1)[clear])
    assert np.mean(found.argmax(axis=1) == wanted.argmax(axis=1)) > 0.9


def test_the_same_bits_with_speculation_and_without(weights: Weights, model: CpuModel) -> None:
    tokens = tuple(load_tokenizer(weights).encode(PROSE))[:60]
    plain, rows = model.open(), []
    for token in tokens:
        with model.forward([ForwardInput(plain, (token,))]) as output:
            rows.append(output.logits(0)[0].copy())
            output.commit(0, ())
    # The text itself among siblings that are wrong, in two sequences of different length at once.
    width, kvs = 3, [model.open(), model.open()]
    with model.forward([ForwardInput(kvs[0], tokens[:20]), ForwardInput(kvs[1], tokens[:33])]) as output:
        assert np.array_equal(output.logits(0)[0], rows[19])
        assert np.array_equal(output.logits(1)[0], rows[32])
        output.commit(0, ())
        output.commit(1, ())
    parents = tuple(ROOT if node < width else node // width * width - width for node in range(5 * width))

    def draft(start: int) -> Draft:
        return Draft(tuple(tokens[start + node // width] + node % width for node in range(5 * width)), parents)

    with model.forward(
        [ForwardInput(kvs[0], tokens[20:21], draft(21)), ForwardInput(kvs[1], tokens[33:34], draft(34))]
    ) as output:
        for i, start in ((0, 20), (1, 33)):
            found = output.logits(i)
            for depth in range(6):
                row = 0 if depth == 0 else 1 + (depth - 1) * width
                assert np.array_equal(found[row], rows[start + depth])
            output.commit(i, [depth * width for depth in range(5)])
    with model.forward([ForwardInput(kvs[0], tokens[26:27])]) as output:
        assert np.array_equal(output.logits(0)[0], rows[26])
