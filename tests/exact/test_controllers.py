"""Every controller with every ratio rule through the engine, enumerated: how much is drafted and verified changes no text.

Controllers see a clock that passes move by given curves, so what they decide is repeatable; calibrations are those of a fresh
start, or have seen that unlikely guesses come true and likely ones do not, deeper ones more so.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forerun.backends.toy import ToyModel
from forerun.controllers import gate, trimming
from forerun.controllers.heuristic import Heuristic
from forerun.core.draft import Draft
from forerun.core.protocols import Controller, Drafter, Rng, Verifier
from forerun.drafters.compose import Merge
from forerun.drafters.model import ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.recycling import RecyclingDrafter
from forerun.engine import Method, engine, speculator
from forerun.verifiers.block import Block
from forerun.verifiers.kseq import KSeq
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from tests.exact.controlled import CURVES, Clock, CountingTrim, FrozenCurve, TimedToy
from tests.exact.enumeration import Table, Text, every_path, plain_probs, random_table
from tests.exact.through_engine import probs_of, request, total, toy, written

P, Q, OTHER = (random_table(name, 2, highest=5) for name in ("p", "q", "other"))
RULES: dict[str, Verifier] = {rule.name: rule for rule in (Rejection(), Block(), Traversal(), KSeq())}
# Seconds of a pass of the model that drafts.
LEVEL = {1: 0.05, 8: 0.1}


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(TimedToy, "clock", clock)
    for module in (engine, speculator):
        monkeypatch.setattr(module, "time", clock)


def timed(table: Table, curve: str) -> ToyModel:
    kind = type("Timed", (TimedToy,), {"seconds": staticmethod(FrozenCurve(CURVES[curve]))})
    return toy(table, kind)


def drawing(width: int = 1, depth: int = 0) -> Drafter:
    return ModelDrafter(toy(Q), toy(P).info, width=width, depth=depth, name="model:q")


def other() -> Drafter:
    return ModelDrafter(toy(OTHER), toy(P).info, name="model:other")


METHODS: dict[str, Callable[[], Method]] = {
    "model, chain": lambda: Method(model=drawing()),
    "model, always asked": lambda: Method(cheap=drawing()),
    "model, tree": lambda: Method(cheap=drawing(2)),
    "ngram beside model": lambda: Method(NgramDrafter(), drawing()),
    "model merged with recycling": lambda: Method(Merge([drawing(), RecyclingDrafter(2, floor=0.0)])),
    "model merged with model": lambda: Method(Merge([drawing(depth=1), other()])),
    "model<ngram": lambda: Method(ModelDrafter(toy(Q), toy(P).info, stage=NgramDrafter(), name="model:q")),
}


def goodput(curve: str, *, warm: bool, unclocked: int | None) -> Callable[[], Controller]:
    def make() -> Controller:
        made = CountingTrim(FrozenCurve(CURVES[curve]), 3, FrozenCurve(LEVEL), unclocked=unclocked)
        if warm:
            for source in ("model:q", "model:other", "recycling", "ngram"):
                for score in (0.1, 0.3, 0.5, 0.7, 0.9):
                    for right in (score < 0.4, score < 0.6):
                        draft = Draft((1, 1), (-1, 0), scores=(score, score), source=source)
                        made.calibrations[""].observe(draft, [1, 1] if right else [1, 0])
        return made

    return make


CONTROLLERS: dict[str, tuple[str, Callable[[], Controller]]] = {
    **{
        f"goodput, {curve}, {'warm' if warm else 'cold'}": (curve, goodput(curve, warm=warm, unclocked=None))
        for curve in CURVES
        for warm in (False, True)
    },
    "goodput as it is": ("convex", goodput("convex", warm=True, unclocked=7)),
    "heuristic": ("linear", lambda: Heuristic(2)),
}
# On chains block is traversal; on trees K-SEQ is rejection: each pair of rules has its cases.
PAIRS = [
    (method, rule)
    for method in METHODS
    for rule in RULES
    if rule in ("rejection", "traversal") or method == "model, always asked"
]


@pytest.mark.parametrize(("method", "rule"), PAIRS)
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_the_distribution_is_the_targets(controller: str, method: str, rule: str) -> None:
    curve, make = CONTROLLERS[controller]
    target = timed(P, curve)

    def run(rng: Rng) -> Text:
        return written(target, METHODS[method](), RULES[rule], [request(3)], rng, make())[0]

    assert probs_of(run) == plain_probs(P, 3)


def test_these_controllers_cut() -> None:
    """Otherwise the comparisons above would say little."""
    cuts = 0
    for controller in [name for name in CONTROLLERS if "goodput" in name]:
        CountingTrim.given = CountingTrim.kept = 0
        for method in ("model, always asked", "model merged with recycling"):
            unlike_plain(controller, method, "rejection")
        assert CountingTrim.kept > 0, controller
        cuts += CountingTrim.kept < CountingTrim.given
    assert cuts >= len(CURVES)


@pytest.mark.parametrize("rule", RULES)
def test_a_gate_that_closes_at_once(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_PATIENCE": 1, "_LOSS": -1.0, "_FIRST_WAIT": 1}.items():
        monkeypatch.setattr(gate, name, value)
    target, make = timed(P, "convex"), goodput("convex", warm=True, unclocked=None)

    def run(rng: Rng) -> Text:
        return written(target, METHODS["model, always asked"](), RULES[rule], [request(4)], rng, make())[0]

    assert probs_of(run) == plain_probs(P, 4)


@pytest.mark.parametrize("controller", ["goodput, convex, warm", "goodput, jump after three rows, cold", "heuristic"])
def test_two_requests_in_one_pass_are_independent(controller: str) -> None:
    """They share the rows of a pass, so the one's draft decides how much of the other's is verified."""
    curve, make = CONTROLLERS[controller]
    target = timed(P, curve)

    def run(rng: Rng) -> tuple[Text, ...]:
        both = [request(2), request(2)]
        return written(target, METHODS["model, always asked"](), RULES["rejection"], both, rng, make())

    plain = plain_probs(P, 2)
    assert total(every_path(run)) == {(a, b): plain[a] * plain[b] for a in plain for b in plain}


def unlike_plain(controller: str, method: str, rule: str) -> bool:
    curve, make = CONTROLLERS[controller]
    target = timed(P, curve)
    found = probs_of(lambda rng: written(target, METHODS[method](), RULES[rule], [request(3)], rng, make())[0])
    return found != plain_probs(P, 3)


@pytest.mark.parametrize("rule", ["rejection", "block", "traversal", "kseq"])
def test_cutting_at_the_best_place_is_caught(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that this suite was written for: whether a drawn node is verified depended on what was drawn below it."""
    monkeypatch.setattr(trimming, "cut_while_drawing", trimming.cut_at_best)
    assert any(unlike_plain(controller, "model, always asked", rule) for controller in CONTROLLERS)
