"""Every drafter with every exact rule, through the engine, enumerated: drawn tokens, tree shapes, learning and all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from forerun.backends.toy import ToyModel
from forerun.core.protocols import Drafter, Rng
from forerun.drafters.compose import Chain, Extend, Merge
from forerun.drafters.head import Head
from forerun.drafters.logitspec import LogitSpecDrafter
from forerun.drafters.lookahead import LookaheadDrafter
from forerun.drafters.model import ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.prediction import PredictionDrafter
from forerun.drafters.recycling import RecyclingDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.verifiers.block import Block
from forerun.verifiers.kseq import KSeq
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from tests.exact.enumeration import Text, plain_law, random_table
from tests.exact.through_engine import EnumeratedNoise, law_of, request, toy, written

P = {2: random_table("p", 2, highest=5), 3: random_table("p", 3, lowest=0, highest=2)}
Q = {2: random_table("q", 2, highest=5), 3: random_table("q", 3, lowest=0, highest=2)}


def model(vocab: int, width: int = 1, threshold: float = 0.0, depth: int = 0) -> ModelDrafter:
    return ModelDrafter(toy(Q[vocab]), toy(P[vocab]).info, width=width, threshold=threshold, depth=depth)


def headed(widened: bool = False) -> ModelDrafter:
    """A draft model whose head has rows for two of three ids; q of the third is zero, or scored by the text."""
    whole = toy(Q[3])
    cut = ToyModel(3, 16, lambda path: whole._law(path)[[2, 0]])
    vectors = (lambda ids: np.zeros((len(ids), 16), np.float32)) if widened else None
    return ModelDrafter(cut, toy(P[3]).info, width=2, head=Head(np.array([2, 0]), 3, vectors))


# A drafter for a vocabulary, how large that is, how many nodes a round, how many tokens.
Case = tuple[Callable[[], Drafter], int, int, int]
DRAFTERS: dict[str, Case] = {
    "ngram": (NgramDrafter, 2, 3, 4),
    "suffix": (SuffixDrafter, 2, 3, 4),
    "suffix, bold": (lambda: SuffixDrafter(floor=0.0), 3, 4, 3),
    "recycling": (lambda: RecyclingDrafter(2, floor=0.0), 2, 4, 4),
    "logitspec": (lambda: LogitSpecDrafter(3), 3, 4, 3),
    "prediction": (lambda: PredictionDrafter(2), 2, 3, 4),
    "lookahead": (lambda: LookaheadDrafter(2), 2, 3, 4),
    "model, chain": (lambda: model(2), 2, 2, 3),
    "model, chain with zeros": (lambda: model(3), 3, 2, 3),
    "model, chain that stops": (lambda: model(2, threshold=0.6), 2, 3, 4),
    "model, tree of two": (lambda: model(3, width=2), 3, 2, 3),
    "model, tree of three": (lambda: model(3, width=2), 3, 3, 3),
    "model, wide": (lambda: model(3, width=3, depth=1), 3, 3, 3),
    "model, head of two": (headed, 3, 2, 3),
    "model, head and text": (lambda: headed(True), 3, 2, 3),
    "ngram, model": (lambda: Chain([NgramDrafter(), model(2)]), 2, 2, 3),
    "ngram+model": (lambda: Merge([NgramDrafter(), model(2)]), 2, 3, 3),
    "model>suffix": (lambda: Extend([model(2), SuffixDrafter()]), 2, 3, 3),
    "suffix>model": (lambda: Extend([SuffixDrafter(), model(2)]), 2, 3, 3),
}
RULES = {rule.name: rule for rule in (Rejection(), Block(), Traversal(), KSeq())}
# On trees without replacement block is traversal and K-SEQ is rejection (tests/unit/verifiers); the large cases skip them.
LARGE = {case for case in DRAFTERS if case.startswith("model, tree") or "+" in case or ">" in case}
PAIRS = [(case, rule) for case in DRAFTERS for rule in RULES if case not in LARGE or rule in ("rejection", "traversal")]


@pytest.mark.parametrize(("case", "rule"), PAIRS)
def test_every_drafter_with_every_rule(case: str, rule: str) -> None:
    make, vocab, budget, length = DRAFTERS[case]
    drafted = 0

    def run(rng: Rng) -> Text:
        nonlocal drafted
        asked = request(length, prediction=(0, 1, 1, 0))
        asked.noise = EnumeratedNoise(rng)
        text = written(toy(P[vocab]), make(), RULES[rule], [asked], rng, budget)[0]
        drafted += asked.stats.drafted
        return text

    assert law_of(run) == plain_law(P[vocab], length)
    assert drafted > 0
