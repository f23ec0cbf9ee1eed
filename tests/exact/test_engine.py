"""The same through the real engine: every path of its randomness, with KV that is committed and rolled back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.backends.toy import ToyModel
from forerun.cascade.verifier import Cascade
from forerun.controllers.fixed import Fixed
from forerun.core.draft import Draft
from forerun.core.model import NOTHING, Model, Needs
from forerun.core.protocols import Rng, Verifier
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.transcript import Transcript
from forerun.drafters.base import Session, SessionDrafter
from forerun.engine import Engine, Method
from forerun.verifiers.block import Block
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.kseq import KSeq
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from tests.exact.drafting import chain, looked_up, sometimes, tree
from tests.exact.enumeration import Drafting, Table, Text, TextProbs, every_path, plain_probs, random_table
from tests.exact.through_engine import PROMPT, probs_of, request, total, toy, written

P, Q = random_table("p", 2, highest=5), random_table("q", 2, highest=5)
P3, Q3 = random_table("p", 3, lowest=0, highest=2), random_table("q", 3, lowest=0, highest=2)


class Scripted(SessionDrafter[Session]):
    """Drafts from a table, with the enumeration's randomness."""

    name = "scripted"

    def __init__(self, drafting: Drafting, rng: Rng) -> None:
        self._drafting, self._rng = drafting, rng

    def open(self, transcript: Transcript) -> Session:
        return Session(transcript)

    def draft(self, session: Session, path: Sequence[int], nodes: int) -> Draft:
        return self._drafting((*session.transcript.output, *path), self._rng)


def probs_through(
    rule: Verifier, target: Model, drafting: Drafting, length: int, nodes: int = 9, stop: frozenset[int] = frozenset()
) -> TextProbs:
    def run(rng: Rng) -> Text:
        asked = [request(length, stop_ids=stop)]
        return written(target, Scripted(drafting, rng), rule, asked, rng, nodes)[0]

    return probs_of(run)


RULES = {rule.name: rule for rule in (Rejection(), Block(), Traversal(), KSeq())}


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> Verifier:
    return RULES[request.param]


DRAFTS: dict[str, tuple[Table, Drafting, int]] = {
    "chain": (P, chain(Q, 2), 3),
    "chain with zeros": (P3, chain(Q3, 2), 3),
    "tree with replacement": (P, tree(Q, (2,), with_replacement=True), 3),
    "tree without replacement": (P3, tree(Q3, (2, 1)), 3),
    "deterministic tree": (P, looked_up(2, (2, 2)), 4),
    "plain in between": (P, sometimes(chain(Q, 2)), 4),
}


@pytest.mark.parametrize("case", DRAFTS)
def test_the_distribution_through_the_engine(rule: Verifier, case: str) -> None:
    table, drafting, length = DRAFTS[case]
    assert probs_through(rule, toy(table), drafting, length) == plain_probs(table, length)


@pytest.mark.parametrize("nodes", [0, 1, 2])
def test_drafts_are_cut_without_bias(nodes: int) -> None:
    assert probs_through(Traversal(), toy(P), tree(Q, (2, 1)), 3, nodes) == plain_probs(P, 3)


def test_targets_that_take_chains_only() -> None:
    assert probs_through(Block(), toy(P, tree=False), tree(Q, (2, 1)), 3) == plain_probs(P, 3)


def test_a_stop_token_inside_an_accepted_run_ends_the_text() -> None:
    want: TextProbs = defaultdict(Fraction)
    for text, probability in plain_probs(P, 3).items():
        want[text[: text.index(1) + 1] if 1 in text else text] += probability
    assert probs_through(Rejection(), toy(P), chain(Q, 2), 3, stop=frozenset({1})) == want


def test_two_requests_in_one_pass_are_independent() -> None:
    def run(rng: Rng) -> tuple[Text, ...]:
        both = [request(2), request(2)]
        return written(toy(P), Scripted(chain(Q, 1), rng), Rejection(), both, rng, 9)

    plain = plain_probs(P, 2)
    assert total(every_path(run)) == {(a, b): plain[a] * plain[b] for a in plain for b in plain}


def test_cascade_through_the_engine() -> None:
    """The last token has no draft (no room for one), so there the distribution is the target's."""
    rule = Cascade("v3", 0.5)

    def mixed(text: Text) -> NDArray[Any]:
        p, q = P.probs(text), Q.probs(text)
        return rule.mix(p, q, p, q) if len(text) < 2 else p

    pi = Table(2, mixed)
    assert any(list(pi.probs(text)) != list(P.probs(text)) for text in [(), (0,), (1,)])
    assert probs_through(rule, toy(P), chain(Q, 2), 3) == plain_probs(pi, 3)


@pytest.mark.parametrize("drafts", ["chain", "tree without replacement", "deterministic tree", "plain in between"])
def test_keyed_text_is_the_plain_text(drafts: str) -> None:
    table, drafting, _ = DRAFTS[drafts]
    for seed in range(10):
        texts = []
        for nodes in (0, 1, 2, 9):
            method = Method(cheap=Scripted(drafting, Sampled(seed)))
            engine = Engine(toy(table), {"draft": method}, [Keyed()], Fixed(nodes))
            run = engine.add(Request(PROMPT, Sampling(temperature=1.0, max_tokens=10), seed=seed))
            while not engine.idle:
                engine.step()
            texts.append(run.output)
            assert run.stats.drafted > 0 or not nodes
        assert texts == [texts[0]] * len(texts)


class Sampled:
    """Rng for drafters where only the verifier matters."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def accept(self, probability: Any) -> bool:
        return bool(self._random.random() < probability)

    def sample(self, weights: NDArray[Any]) -> int:
        p = weights.astype(np.float64)
        return int(self._random.choice(len(p), p=p / p.sum()))


class Leaky(ToyModel):
    """Commits the first nodes of a pass instead of those on the path."""

    def forward(self, inputs: Any, needs: Needs = NOTHING) -> Any:
        return LeakyPass(super().forward(inputs, needs))


class LeakyPass:
    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> Any:
        scored = self._context.__enter__()
        right = scored.commit
        scored.commit = lambda index, path: right(index, tuple(range(len(path))))
        return scored

    def __exit__(self, *error: Any) -> Any:
        return self._context.__exit__(*error)


def test_a_kv_that_keeps_refused_nodes_is_caught() -> None:
    broken = toy(P, kind=Leaky)
    assert probs_through(Rejection(), broken, tree(Q, (2, 1)), 4) != plain_probs(P, 4)
