"""The same law through the real engine: every path of rng, with KV that is committed and rolled back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.backends.toy import ToyModel
from forerun.controllers.fixed import Fixed
from forerun.core.draft import Draft
from forerun.core.protocols import NOTHING, DraftSession, Model, Needs, Rng, Verifier
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult
from forerun.engine import Engine
from forerun.verifiers.block import Block
from forerun.verifiers.cascade import Cascade
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.kseq import KSeq
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from tests.exact.drafting import chain, looked_up, sometimes, tree
from tests.exact.enumeration import Drafting, Table, Text, TextLaw, every_path, plain_law, random_table
from tests.exact.through_engine import PROMPT, law_of, request, toy, written

P, Q = random_table("p", 2, highest=5), random_table("q", 2, highest=5)
P3, Q3 = random_table("p", 3, lowest=0, highest=2), random_table("q", 3, lowest=0, highest=2)


class Scripted:
    """Drafts from a table, with the enumeration's rng."""

    name = "scripted"
    needs: Needs = NOTHING

    def __init__(self, drafting: Drafting, rng: Rng) -> None:
        self._drafting, self._chance = drafting, rng

    def open(self, request: Request) -> ScriptedSession:
        return ScriptedSession(self._drafting, self._chance, request)

    def propose(self, sessions: Sequence[DraftSession], budgets: Sequence[int]) -> list[Draft]:
        return [session.propose(budget) for session, budget in zip(sessions, budgets, strict=True)]

    def close(self) -> None:
        pass


class ScriptedSession:
    def __init__(self, drafting: Drafting, rng: Rng, request: Request) -> None:
        self._drafting, self._chance, self._request = drafting, rng, request

    def propose(self, budget: int) -> Draft:
        return self._drafting(tuple(self._request.output), self._chance)

    def observe(self, result: StepResult) -> None:
        pass

    def close(self) -> None:
        pass


def written_law(
    rule: Verifier, target: Model, drafting: Drafting, length: int, budget: int = 9, stop: frozenset[int] = frozenset()
) -> TextLaw:
    def run(rng: Rng) -> Text:
        asked = [request(length, stop_ids=stop)]
        return written(target, Scripted(drafting, rng), rule, asked, rng, budget)[0]

    return law_of(run)


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
def test_law_through_the_engine(rule: Verifier, case: str) -> None:
    table, drafting, length = DRAFTS[case]
    assert written_law(rule, toy(table), drafting, length) == plain_law(table, length)


@pytest.mark.parametrize("budget", [0, 1, 2])
def test_budgets_cut_drafts_without_bias(budget: int) -> None:
    assert written_law(Traversal(), toy(P), tree(Q, (2, 1)), 3, budget) == plain_law(P, 3)


def test_targets_that_take_chains_only() -> None:
    assert written_law(Block(), toy(P, tree=False), tree(Q, (2, 1)), 3) == plain_law(P, 3)


def test_a_stop_token_inside_an_accepted_run_ends_the_text() -> None:
    want: TextLaw = defaultdict(Fraction)
    for text, probability in plain_law(P, 3).items():
        want[text[: text.index(1) + 1] if 1 in text else text] += probability
    assert written_law(Rejection(), toy(P), chain(Q, 2), 3, stop=frozenset({1})) == want


def test_two_requests_in_one_pass_are_independent() -> None:
    law: dict[tuple[Text, ...], Fraction] = defaultdict(Fraction)

    def run(rng: Rng) -> tuple[Text, ...]:
        both = [request(2), request(2)]
        return written(toy(P), Scripted(chain(Q, 1), rng), Rejection(), both, rng, 9)

    for texts, probability in every_path(run):
        law[texts] += probability
    plain = plain_law(P, 2)
    assert law == {(a, b): plain[a] * plain[b] for a in plain for b in plain}


def test_cascade_through_the_engine() -> None:
    """The last token has no draft (no room for one), so there the law is the target's."""
    rule = Cascade("v3", 0.5)

    def mixed(text: Text) -> NDArray[Any]:
        p, q = P.law(text), Q.law(text)
        return rule.mix(p, q, p, q) if len(text) < 2 else p

    pi = Table(2, mixed)
    assert any(list(pi.law(text)) != list(P.law(text)) for text in [(), (0,), (1,)])
    assert written_law(rule, toy(P), chain(Q, 2), 3) == plain_law(pi, 3)


@pytest.mark.parametrize("drafts", ["chain", "tree without replacement", "deterministic tree", "plain in between"])
def test_keyed_text_is_the_plain_text(drafts: str) -> None:
    table, drafting, _ = DRAFTS[drafts]
    for seed in range(10):
        texts = []
        for nodes in (0, 1, 2, 9):
            engine = Engine(toy(table), Scripted(drafting, Sampled(seed)), Keyed(), Fixed(nodes))
            asked = Request(PROMPT, Sampling(temperature=1.0, max_tokens=10), seed=seed)
            engine.add(asked)
            while not engine.idle:
                engine.step()
            texts.append(asked.output)
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
    assert written_law(Rejection(), broken, tree(Q, (2, 1)), 4) != plain_law(P, 4)
