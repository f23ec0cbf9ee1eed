"""Drafters that draw, through the real engine under the ratio rules: the committed text has the target's distribution.

The exact suite enumerates the same with draws that it controls; here they are the real noise's, so what is shown beside
is that draws below different nodes, in different steps and of verifier and drafter are independent.
Hundreds of seeds on a target of three tokens, against the distribution computed from its table. The seeds are fixed, so the
result is too; the bound is the 99.99 % quantile of chi-square. A bias such as dropping a drawn token because of its
value, or a q that is not what was drawn from, lies far beyond it, and one test here plants it to show that.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from forerun.backends.toy import ToyModel, random_logits
from forerun.controllers.fixed import Fixed
from forerun.core.choosing import softmax
from forerun.core.draft import Draft
from forerun.core.protocols import DraftRequest, Verifier
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.drafters.compose import Merge
from forerun.drafters.model import ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engine import Engine, Method
from forerun.verifiers.block import Block
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal

VOCAB, LENGTH, SEEDS = 3, 3, 800
PROMPT = (0, 1, 2, 0, 1)
TARGET = random_logits(VOCAB, 21, 1.2)
OTHER = random_logits(VOCAB, 22, 1.5)


def small(width: int, depth: int = 0, stage: SuffixDrafter | NgramDrafter | None = None) -> ModelDrafter:
    target, other = ToyModel(VOCAB, 1, TARGET), ToyModel(VOCAB, 1, OTHER)
    return ModelDrafter(other, target.info, width=width, depth=depth, stage=stage)


class Biased(ModelDrafter):
    """Wrong on purpose: drops a drawn token that it finds unlikely, instead of keeping it and stopping there."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = super().propose(requests)
        return [d.keep([]) if d.q and d.q[0] is not None and d.q[0][d.tokens[0]] < 0.3 else d for d in drafts]


def biased() -> Method:
    return Method(model=Biased(ToyModel(VOCAB, 1, OTHER), ToyModel(VOCAB, 1, TARGET).info))


DRAWING: dict[str, Callable[[], Method]] = {
    "chain": lambda: Method(model=small(1)),
    "tree": lambda: Method(model=small(2)),
    "beside": lambda: Method(SuffixDrafter(floor=0.0), small(2)),
    "merge": lambda: Method(model=Merge([small(1), small(2)])),
    "staged": lambda: Method(model=small(1, stage=NgramDrafter())),
}


def distance(method: Method, verifier: Verifier, nodes: int) -> float:
    """Chi-square of the texts of many seeds against the target's distribution."""
    engine = Engine(ToyModel(VOCAB, 1, TARGET), {"draft": method}, [verifier], Fixed(nodes), max_sequences=64)
    sampling = Sampling(temperature=1.0, max_tokens=LENGTH)
    sequences = [engine.add(Request(PROMPT, sampling, seed=seed)) for seed in range(SEEDS)]
    while not engine.idle:
        engine.step()
    assert sum(sequence.offered for sequence in sequences) > 0
    seen = Counter(tuple(sequence.output) for sequence in sequences)
    total = 0.0
    for text in itertools.product(range(VOCAB), repeat=LENGTH):
        probability, before = 1.0, PROMPT[-1]
        for token in text:
            probability *= float(softmax(TARGET((before,)))[token])
            before = token
        total += (seen[text] - SEEDS * probability) ** 2 / (SEEDS * probability)
    return total


BOUND = 61.7  # 26 degrees of freedom


@pytest.mark.parametrize("name", sorted(DRAWING))
def test_rejection_keeps_the_distribution(name: str) -> None:
    assert distance(DRAWING[name](), Rejection(), 3) < BOUND


@pytest.mark.parametrize("verifier", [Block(), Traversal()], ids=lambda rule: rule.name)
def test_rules_that_look_ahead_keep_it_too(verifier: Verifier) -> None:
    """Draws below different nodes must be independent."""
    assert distance(Method(model=small(2)), verifier, 3) < BOUND


def test_a_planted_bias_is_caught() -> None:
    assert distance(biased(), Rejection(), 1) > BOUND


def test_the_bound_is_not_vacuous() -> None:
    """Texts drawn from the draft model's distribution instead are nowhere near."""
    rng = np.random.default_rng(1)
    draws = rng.choice(VOCAB, SEEDS, p=softmax(OTHER((PROMPT[-1],))))
    expected = SEEDS * softmax(TARGET((PROMPT[-1],)))
    assert float(((np.bincount(draws, minlength=VOCAB) - expected) ** 2 / expected).sum()) > BOUND
