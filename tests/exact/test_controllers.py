"""Every controller with every ratio rule through the engine, enumerated: how much is drafted and verified changes no text.

Controllers see a clock that passes move by given curves, so what they decide is repeatable; calibrations are those of a fresh
start, have seen that unlikely guesses come true and likely ones do not, or are random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from forerun.backends.toy import ToyModel
from forerun.controllers import gate, trimming
from forerun.controllers.calibration import Calibration
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
from tests.exact.test_cuts import cost_curve, number
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


def timed(table: Table, curve: Mapping[int, float]) -> ToyModel:
    kind = type("Timed", (TimedToy,), {"seconds": staticmethod(FrozenCurve(curve))})
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


def goodput(curve: Mapping[int, float], *, warm: bool, unclocked: int | None) -> Callable[[], Controller]:
    def make() -> Controller:
        made = CountingTrim(FrozenCurve(curve), 3, FrozenCurve(LEVEL), unclocked=unclocked)
        if warm:
            for source in ("model:q", "model:other", "recycling", "ngram"):
                for score in (0.1, 0.3, 0.5, 0.7, 0.9):
                    for right in (score < 0.4, score < 0.6):
                        draft = Draft((1, 1), (-1, 0), scores=(score, score), source=source)
                        made.calibrations[""].observe(draft, [1, 1] if right else [1, 0])
        return made

    return make


class Odd(Calibration):
    """Rates that look random and depend on source, depth and score alone."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed

    def accepted(self, draft: Draft) -> list[float]:
        return [
            number(self._seed, "rate", draft.source_of(node), draft.depths[node], int(draft.score(node) * 6))
            for node in range(len(draft))
        ]


def odd(seed: int, curve: Mapping[int, float]) -> Callable[[], Controller]:
    def make() -> Controller:
        made = CountingTrim(FrozenCurve(curve), 3, FrozenCurve(LEVEL), unclocked=None)
        made.calibrations[""] = Odd(seed)
        return made

    return make


def random_curve(seed: int) -> dict[int, float]:
    """Flat stretches, slopes and jumps."""
    seconds = cost_curve(("c", seed))
    return {rows: seconds(rows) for rows in range(1, 25)}


JUMP = CURVES["jump after two rows"]
# Seconds by rows, and who decides.
CONTROLLERS: dict[str, tuple[Mapping[int, float], Callable[[], Controller]]] = {
    **{f"goodput, {name}": (curve, goodput(curve, warm=True, unclocked=None)) for name, curve in CURVES.items()},
    "goodput, cold": (CURVES["convex"], goodput(CURVES["convex"], warm=False, unclocked=None)),
    "goodput as it is": (CURVES["convex"], goodput(CURVES["convex"], warm=True, unclocked=7)),
    **{f"goodput, odd {seed}": (random_curve(seed), odd(seed, random_curve(seed))) for seed in (2, 3)},
    **{f"goodput, odd {seed}": (JUMP, odd(seed, JUMP)) for seed in (4, 11)},
    "heuristic": (CURVES["linear"], lambda: Heuristic(2)),
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
    verify = cuts = both = 0
    for controller in [name for name in CONTROLLERS if "goodput" in name]:
        CountingTrim.given = CountingTrim.kept = 0
        for method in ("model, always asked", "model merged with recycling"):
            unlike_plain(controller, method, "rejection")
        verify += CountingTrim.kept > 0
        cuts += CountingTrim.kept < CountingTrim.given
        both += 0 < CountingTrim.kept < CountingTrim.given
    assert min(verify, cuts) > 5
    assert both > 3


@pytest.mark.parametrize("rule", ["rejection", "traversal"])
def test_a_gate_that_closes_at_once(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_PATIENCE": 1, "_LOSS": -1.0, "_FIRST_WAIT": 1}.items():
        monkeypatch.setattr(gate, name, value)
    target, make = timed(P, CURVES["convex"]), goodput(CURVES["convex"], warm=True, unclocked=None)

    def run(rng: Rng) -> Text:
        return written(target, METHODS["model, always asked"](), RULES[rule], [request(4)], rng, make())[0]

    assert probs_of(run) == plain_probs(P, 4)


@pytest.mark.parametrize("controller", ["goodput, convex", "goodput, odd 4", "heuristic"])
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
    assert unlike_plain("goodput, odd 4", "model, always asked", rule)
    assert unlike_plain("goodput, odd 4", "model merged with recycling", rule)
