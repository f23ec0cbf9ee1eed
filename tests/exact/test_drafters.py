"""Every drafter with every exact rule, through the engine, enumerated: drawn tokens, tree shapes, learning and all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from forerun.backends.toy import ToyModel
from forerun.core.protocols import Drafter, Rng
from forerun.drafters.compose import Merge
from forerun.drafters.head import Head
from forerun.drafters.model import ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.prediction import PredictionDrafter
from forerun.drafters.recycling import RecyclingDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engine import Method
from forerun.verifiers.block import Block
from forerun.verifiers.kseq import KSeq
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from tests.exact.enumeration import Text, plain_probs, random_table
from tests.exact.through_engine import played, probs_of, request, toy

P = {2: random_table("p", 2, highest=5), 3: random_table("p", 3, lowest=0, highest=2)}
Q = {2: random_table("q", 2, highest=5), 3: random_table("q", 3, lowest=0, highest=2)}
OTHER = {2: random_table("other", 2, highest=5), 3: random_table("other", 3, lowest=0, highest=2)}


def model(vocab: int, width: int = 1, threshold: float = 0.0, depth: int = 0, stage: Drafter | None = None) -> Drafter:
    return ModelDrafter(
        toy(Q[vocab]), toy(P[vocab]).info, width=width, threshold=threshold, depth=depth, stage=stage, name="model:q"
    )


def other(vocab: int, width: int = 1) -> Drafter:
    """A second model that draws, with noise of its own."""
    return ModelDrafter(toy(OTHER[vocab]), toy(P[vocab]).info, width=width, name="model:other")


def headed(widened: bool = False) -> Drafter:
    """A draft model whose head has rows for two of three ids; q of the third is zero, or scored by the text."""
    whole = toy(Q[3])
    cut = ToyModel(3, 16, lambda path: whole.logits_of(path)[[2, 0]])
    vectors = (lambda ids: np.zeros((len(ids), 16), np.float32)) if widened else None
    return ModelDrafter(cut, toy(P[3]).info, width=2, head=Head(np.array([2, 0]), 3, vectors))


def cheap(make: Callable[[], Drafter]) -> Callable[[], Method]:
    return lambda: Method(cheap=make())


def run_by_plan(make: Callable[[], Drafter]) -> Callable[[], Method]:
    return lambda: Method(model=make())


def both(make: Callable[[], Drafter], beside: Callable[[], Drafter]) -> Callable[[], Method]:
    """The second runs where the first has nothing to say."""
    return lambda: Method(cheap=make(), model=beside())


# What drafts for a vocabulary, how large that is, how many nodes a step, how many tokens.
Case = tuple[Callable[[], Method], int, int, int]
DRAFTERS: dict[str, Case] = {
    "ngram": (cheap(NgramDrafter), 2, 3, 4),
    "suffix": (cheap(SuffixDrafter), 2, 3, 4),
    "suffix, bold": (cheap(lambda: SuffixDrafter(floor=0.0)), 3, 4, 3),
    "recycling": (cheap(lambda: RecyclingDrafter(2, floor=0.0)), 2, 4, 4),
    "prediction": (cheap(lambda: PredictionDrafter(2)), 2, 3, 4),
    "model, chain": (run_by_plan(lambda: model(2)), 2, 2, 3),
    "model, chain, always asked": (cheap(lambda: model(2)), 2, 2, 3),
    "model, chain with zeros": (run_by_plan(lambda: model(3)), 3, 2, 3),
    "model, chain that stops": (run_by_plan(lambda: model(2, threshold=0.6)), 2, 3, 4),
    "model, tree of two": (run_by_plan(lambda: model(3, width=2)), 3, 2, 3),
    "model, tree of three": (run_by_plan(lambda: model(3, width=2)), 3, 3, 3),
    "model, wide": (run_by_plan(lambda: model(3, width=3, depth=1)), 3, 3, 3),
    "model, head of two": (run_by_plan(headed), 3, 2, 3),
    "model, head and text": (run_by_plan(lambda: headed(True)), 3, 2, 3),
    "model<suffix": (run_by_plan(lambda: model(3, width=2, stage=SuffixDrafter())), 3, 3, 3),
    "ngram|model": (both(NgramDrafter, lambda: model(2)), 2, 2, 3),
    "model|other": (both(lambda: model(2), lambda: other(2)), 2, 2, 3),
    "ngram+model": (cheap(lambda: Merge([NgramDrafter(), model(2)])), 2, 3, 3),
    "model+suffix": (run_by_plan(lambda: Merge([model(2), SuffixDrafter()])), 2, 3, 3),
    "model+other": (run_by_plan(lambda: Merge([model(2, depth=1), other(2)])), 2, 2, 3),
    "model+other, trees": (run_by_plan(lambda: Merge([model(3, width=2, depth=1), other(3, width=2)])), 3, 3, 3),
}
RULES = {rule.name: rule for rule in (Rejection(), Block(), Traversal(), KSeq())}
# On trees without replacement block is traversal and K-SEQ is rejection (tests/unit/verifiers); the large cases skip them.
LARGE = {case for case in DRAFTERS if case.startswith("model, tree") or "+" in case or "<" in case}
PAIRS = [(case, rule) for case in DRAFTERS for rule in RULES if case not in LARGE or rule in ("rejection", "traversal")]


@pytest.mark.parametrize(("case", "rule"), PAIRS)
def test_every_drafter_with_every_rule(case: str, rule: str) -> None:
    make, vocab, nodes, length = DRAFTERS[case]
    drafted = 0

    def run(rng: Rng) -> Text:
        nonlocal drafted
        [sequence] = played(toy(P[vocab]), make(), RULES[rule], [request(length, prediction=(0, 1, 1, 0))], rng, nodes)
        drafted += sequence.stats.drafted
        return tuple(sequence.output)

    assert probs_of(run) == plain_probs(P[vocab], length)
    assert drafted > 0
