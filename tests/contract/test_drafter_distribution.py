"""Drafters that draw, through the real engine under the ratio rules: the committed text has the target's law.

The exact suite enumerates the same with draws that it controls; here they are the real noise's, so what is shown beside
is that draws below different nodes, in different rounds and of verifier and drafter are independent.
Hundreds of seeds on a target of three tokens, against the law computed from its table. The seeds are fixed, so the
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
from forerun.core.draft import Draft
from forerun.core.protocols import Drafter, DraftSession, Verifier
from forerun.core.request import Request
from forerun.core.sampling import Sampling, softmax
from forerun.drafters.compose import Extend, Merge
from forerun.drafters.model import ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engine import Engine
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal

VOCAB, LENGTH, SEEDS = 3, 3, 800
PROMPT = (0, 1, 2, 0, 1)
TARGET = random_logits(VOCAB, 21, 1.2)
HELPER = random_logits(VOCAB, 22, 1.5)


def small(width: int, depth: int = 0) -> ModelDrafter:
    target, helper = ToyModel(VOCAB, 1, TARGET), ToyModel(VOCAB, 1, HELPER)
    return ModelDrafter(helper, target.info, width=width, depth=depth)


class Biased(ModelDrafter):
    """Wrong on purpose: drops a drawn token that it finds unlikely, instead of keeping it and stopping there."""

    def propose_after(
        self, sessions: Sequence[DraftSession], paths: Sequence[Sequence[int]], budgets: Sequence[int]
    ) -> list[Draft]:
        drafts = super().propose_after(sessions, paths, budgets)
        return [d.keep([]) if d.q and d.q[0] is not None and d.q[0][d.tokens[0]] < 0.3 else d for d in drafts]


def biased() -> Drafter:
    target, helper = ToyModel(VOCAB, 1, TARGET), ToyModel(VOCAB, 1, HELPER)
    return Biased(helper, target.info)


DRAWING: dict[str, Callable[[], Drafter]] = {
    "tree": lambda: small(2),
    "merge": lambda: Merge([SuffixDrafter(floor=0.0), small(2)]),
    "extend": lambda: Extend([small(2, depth=1), NgramDrafter()]),
}


def distance(drafter: Drafter, verifier: Verifier, budget: int) -> float:
    """Chi-square of the texts of many seeds against the target's law."""
    engine = Engine(ToyModel(VOCAB, 1, TARGET), drafter, verifier, Fixed(budget), max_sequences=64)
    requests = [Request(PROMPT, Sampling(temperature=1.0, max_tokens=LENGTH), seed=seed) for seed in range(SEEDS)]
    for request in requests:
        engine.add(request)
    while not engine.idle:
        engine.step()
    seen = Counter(tuple(request.output) for request in requests)
    total = 0.0
    for text in itertools.product(range(VOCAB), repeat=LENGTH):
        chance, before = 1.0, PROMPT[-1]
        for token in text:
            chance *= float(softmax(TARGET((before,)))[token])
            before = token
        total += (seen[text] - SEEDS * chance) ** 2 / (SEEDS * chance)
    return total


BOUND = 61.7  # 26 degrees of freedom


@pytest.mark.parametrize("name", sorted(DRAWING))
def test_rejection_keeps_the_law(name: str) -> None:
    assert distance(DRAWING[name](), Rejection(), 3) < BOUND


def test_traversal_keeps_it_too() -> None:
    """A rule that looks at every branch, so draws below different nodes must be independent."""
    assert distance(small(2), Traversal(), 3) < BOUND


def test_a_planted_bias_is_caught() -> None:
    assert distance(biased(), Rejection(), 1) > BOUND


def test_the_bound_is_not_vacuous() -> None:
    """Texts drawn from the helper's law instead are nowhere near."""
    rng = np.random.default_rng(1)
    draws = rng.choice(VOCAB, SEEDS, p=softmax(HELPER((PROMPT[-1],))))
    expected = SEEDS * softmax(TARGET((PROMPT[-1],)))
    assert float(((np.bincount(draws, minlength=VOCAB) - expected) ** 2 / expected).sum()) > BOUND
