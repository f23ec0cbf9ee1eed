"""The same law through the real engine: every path of chance, with KV that is committed and rolled back.

The toy target reads its text back from its KV, and its laws are small fractions, which are recovered from its float
logits exactly. A KV that keeps a refused node, or loses an accepted one, gives another fraction and so another law.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.backends.toy import ToyModel
from forerun.controllers.fixed import Fixed
from forerun.core.draft import Draft
from forerun.core.outcome import Outcome, Verdict
from forerun.core.protocols import NOTHING, Chance, DraftSession, ModelInfo, Needs, Target, Verifier
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.engine import Engine
from forerun.verifiers.block import Block
from forerun.verifiers.cascade import Cascade
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.kseq import KSeq
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from tests.exact.drafting import chain, looked_up, sometimes, tree
from tests.exact.enumeration import Drafting, Table, Text, TextLaw, every_path, plain_law, random_table

P, Q = random_table("p", 2, highest=5), random_table("q", 2, highest=5)
P3, Q3 = random_table("p", 3, lowest=0, highest=2), random_table("q", 3, lowest=0, highest=2)
PROMPT = (1, 0)
_LARGEST_DENOMINATOR = 15


def toy(table: Table, **options: Any) -> ToyModel:
    """A toy whose law after PROMPT + text is the table's after text."""

    def logits(tokens: Text) -> NDArray[np.float32]:
        law = table.law(tokens[len(PROMPT) :]) if tokens[: len(PROMPT)] == PROMPT else np.ones(table.vocab)
        with np.errstate(divide="ignore"):
            result: NDArray[np.float32] = np.log(law.astype(np.float64)).astype(np.float32)
        return result

    return ToyModel(table.vocab, 16, logits, **options)


class Scripted:
    """Drafts from a table, with the enumeration's chance."""

    name = "scripted"
    needs: Needs = NOTHING

    def __init__(self, drafting: Drafting, chance: Chance) -> None:
        self._drafting, self._chance = drafting, chance

    def open(self, request: Request) -> ScriptedSession:
        return ScriptedSession(self._drafting, self._chance, request)

    def propose(self, sessions: Sequence[DraftSession], budgets: Sequence[int]) -> list[Draft]:
        return [session.propose(budget) for session, budget in zip(sessions, budgets, strict=True)]

    def close(self) -> None:
        pass


class ScriptedSession:
    def __init__(self, drafting: Drafting, chance: Chance, request: Request) -> None:
        self._drafting, self._chance, self._request = drafting, chance, request

    def propose(self, budget: int) -> Draft:
        return self._drafting(tuple(self._request.output), self._chance)

    def observe(self, outcome: Outcome) -> None:
        pass

    def close(self) -> None:
        pass


class InFractions:
    """A rule that sees the engine's float laws as the fractions they came from."""

    def __init__(self, rule: Verifier) -> None:
        self._rule = rule
        self.name, self.exact = rule.name, rule.exact
        self.shares_noise, self.wants_beliefs = rule.shares_noise, rule.wants_beliefs

    def verify(self, draft: Draft, target: Target, chance: Chance) -> Verdict:
        return self._rule.verify(draft, FractionsView(target), chance)


class FractionsView:
    def __init__(self, target: Target) -> None:
        self._target = target
        self.choose = target.choose

    def law(self, node: int) -> NDArray[Any]:
        return recovered(self._target.law(node))

    def belief(self, node: int) -> NDArray[Any]:
        return recovered(self._target.belief(node))


def recovered(law: NDArray[np.float64]) -> NDArray[Any]:
    exact = np.array([_fraction(p) for p in law.tolist()], dtype=object)
    assert exact.sum() == 1
    assert np.abs(exact.astype(np.float64) - law).max() < 1e-6
    return exact


@cache
def _fraction(p: float) -> Fraction:
    return Fraction(p).limit_denominator(_LARGEST_DENOMINATOR)


def run(
    rule: Verifier, table: Table, drafting: Drafting, lengths: Sequence[int], chance: Chance, budget: int, **target: Any
) -> tuple[Text, ...]:
    """What one request per length writes, all in one engine."""
    engine = Engine(
        toy(table, **target),
        Scripted(drafting, chance),
        InFractions(rule),
        Fixed(budget),
        prefill_rows=1,
        chance=lambda request, root: chance,
    )
    requests = [Request(PROMPT, Sampling(temperature=1.0, max_tokens=length)) for length in lengths]
    for request in requests:
        engine.add(request)
    while not engine.idle:
        engine.step()
    engine.close()
    return tuple(tuple(request.output) for request in requests)


def written_law(
    rule: Verifier, table: Table, drafting: Drafting, length: int, budget: int = 9, **target: Any
) -> TextLaw:
    law: TextLaw = defaultdict(Fraction)
    for texts, probability in every_path(lambda chance: run(rule, table, drafting, [length], chance, budget, **target)):
        law[texts[0]] += probability
    return dict(law)


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
    assert written_law(rule, table, drafting, length) == plain_law(table, length)


@pytest.mark.parametrize("budget", [0, 1, 2])
def test_budgets_cut_drafts_without_bias(budget: int) -> None:
    assert written_law(Traversal(), P, tree(Q, (2, 1)), 3, budget=budget) == plain_law(P, 3)


def test_targets_that_take_chains_only() -> None:
    assert written_law(Block(), P, tree(Q, (2, 1)), 3, tree=False) == plain_law(P, 3)


def test_two_requests_in_one_pass_are_independent() -> None:
    law: dict[tuple[Text, ...], Fraction] = defaultdict(Fraction)
    for texts, probability in every_path(lambda chance: run(Rejection(), P, chain(Q, 1), [2, 2], chance, 9)):
        law[texts] += probability
    plain = plain_law(P, 2)
    assert law == {(a, b): plain[a] * plain[b] for a in plain for b in plain}


def test_cascade_through_the_engine() -> None:
    """The last token has no draft (no room for one), so there the law is the target's."""
    rule = Cascade("v3", 0.5)
    pi = Table(
        2, lambda text: rule.mix(P.law(text), Q.law(text), P.law(text), Q.law(text)) if len(text) < 2 else P.law(text)
    )
    assert any(list(pi.law(text)) != list(P.law(text)) for text in [(), (0,), (1,)])
    assert written_law(rule, P, chain(Q, 2), 3) == plain_law(pi, 3)


@pytest.mark.parametrize("drafts", ["chain", "tree without replacement", "deterministic tree", "plain in between"])
def test_keyed_text_is_the_plain_text(drafts: str) -> None:
    table, drafting, _ = DRAFTS[drafts]
    for seed in range(10):
        texts = []
        for nodes in (0, 1, 2, 9):
            random = Sampled(seed)
            engine = Engine(toy(table), Scripted(drafting, random), Keyed(), Fixed(nodes))
            request = Request(PROMPT, Sampling(temperature=1.0, max_tokens=10), seed=seed)
            engine.add(request)
            while not engine.idle:
                engine.step()
            texts.append(request.output)
        assert texts == [texts[0]] * len(texts)


class Sampled:
    """Chance for drafters where only the verifier matters."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def flip(self, probability: Any) -> bool:
        return bool(self._random.random() < probability)

    def draw(self, weights: NDArray[Any]) -> int:
        p = weights.astype(np.float64)
        return int(self._random.choice(len(p), p=p / p.sum()))


def test_a_kv_that_keeps_refused_nodes_is_caught() -> None:
    """The suite would see a broken rollback."""

    class Leaky(ToyModel):
        info: ModelInfo

        def forward(self, feeds: Any, needs: Needs = NOTHING) -> Any:
            context = super().forward(feeds, needs)
            return _LeakyPass(context)

    class _LeakyPass:
        def __init__(self, context: Any) -> None:
            self._context = context

        def __enter__(self) -> Any:
            scored = self._context.__enter__()
            commit = scored.commit

            def wrong(index: int, path: Sequence[int]) -> None:
                # Keeps the first nodes of the pass instead of those on the path.
                commit(index, tuple(range(len(path))))

            scored.commit = wrong
            return scored

        def __exit__(self, *error: Any) -> Any:
            return self._context.__exit__(*error)

    original = toy(P)
    leaky = Leaky(2, 16, original._law)

    def once(chance: Chance) -> Text:
        engine = Engine(
            leaky,
            Scripted(tree(Q, (2, 1)), chance),
            InFractions(Rejection()),
            Fixed(9),
            chance=lambda request, root: chance,
        )
        request = Request(PROMPT, Sampling(temperature=1.0, max_tokens=4))
        engine.add(request)
        while not engine.idle:
            engine.step()
        return tuple(request.output)

    law: TextLaw = defaultdict(Fraction)
    for text, probability in every_path(once):
        law[text] += probability
    assert dict(law) != plain_law(P, 4)
