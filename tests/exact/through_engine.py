"""The real engine, with the enumeration's rng and laws that are fractions.

The toy target reads its text back from its KV, and its laws are small fractions, which are recovered from its float
logits exactly. A KV that keeps a refused node, or loses an accepted one, gives another fraction and so another law.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.backends.toy import ToyModel
from forerun.controllers.fixed import Fixed
from forerun.core.draft import Draft
from forerun.core.noise import Domain, Noise, Stream
from forerun.core.protocols import Drafter, Model, Rng, Target, Verifier
from forerun.core.request import Request
from forerun.core.sampling import Sampling, softmax
from forerun.core.step import Verdict
from forerun.engine import Engine
from tests.exact.enumeration import Table, Text, TextLaw, every_path

PROMPT = (1, 0, 1, 0)
# Of the laws in these tests; float32 logits tell such fractions apart.
_LARGEST_DENOMINATOR = 15


def toy(table: Table, kind: type[ToyModel] = ToyModel, **options: Any) -> ToyModel:
    """A toy whose law after PROMPT + text is the table's after text."""

    def logits(tokens: Text) -> NDArray[np.float32]:
        law = table.law(tokens[len(PROMPT) :]) if tokens[: len(PROMPT)] == PROMPT else np.ones(table.vocab)
        with np.errstate(divide="ignore"):
            result: NDArray[np.float32] = np.log(law.astype(np.float64)).astype(np.float32)
        return result

    return kind(table.vocab, 16, logits, **options)


class InFractions:
    """A rule that sees the engine's float laws as the fractions they came from."""

    def __init__(self, rule: Verifier) -> None:
        self._rule = rule
        self.name, self.exact = rule.name, rule.exact
        self.shares_noise, self.wants_beliefs = rule.shares_noise, rule.wants_beliefs

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        return self._rule.verify(_exactly(draft), FractionsView(target), rng)


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


def _exactly(draft: Draft) -> Draft:
    """The draft with its float q as fractions; siblings go on sharing one array."""
    if draft.q is None:
        return draft
    found: dict[int, NDArray[Any]] = {}
    q = [None if x is None else found.setdefault(id(x), x if x.dtype == object else recovered(x)) for x in draft.q]
    return replace(draft, q=tuple(q))


class EnumeratedNoise(Noise):
    """A request's noise whose draws the enumeration goes through: each stream and position is drawn once."""

    def __init__(self, rng: Rng) -> None:
        super().__init__(0)
        self._chance = rng
        self._streams: dict[tuple[int, int], EnumeratedStream] = {}

    def stream(self, domain: Domain, salt: int = 0) -> Stream:
        return self._streams.setdefault((int(domain), salt), EnumeratedStream(self._chance))


class EnumeratedStream(Stream):
    def __init__(self, rng: Rng) -> None:
        super().__init__(0)
        self._chance = rng
        self._drawn: dict[int, tuple[bytes, list[int]]] = {}

    def order(self, scores: NDArray[Any], position: int, count: int) -> NDArray[np.int64]:
        law = recovered(softmax(scores))
        asked, drawn = self._drawn.setdefault(position, (scores.tobytes(), []))
        assert asked == scores.tobytes(), "one number drawn for two laws: the draws are not independent"
        law[drawn] = 0
        while len(drawn) < count and any(law):
            token = self._chance.sample(law)
            drawn.append(token)
            law[token] = 0
        return np.array(drawn[:count], dtype=np.int64)


def written(
    target: Model, drafter: Drafter, rule: Verifier, requests: list[Request], rng: Rng, budget: int
) -> tuple[Text, ...]:
    """What the requests write, all in one engine."""
    engine = Engine(target, drafter, InFractions(rule), Fixed(budget), prefill_rows=2, rng=lambda request, root: rng)
    for request in requests:
        engine.add(request)
    while not engine.idle:
        engine.step()
    engine.close()
    return tuple(tuple(request.output) for request in requests)


def request(length: int, **options: Any) -> Request:
    return Request(PROMPT, Sampling(temperature=1.0, max_tokens=length), **options)


def law_of(run: Callable[[Rng], Text]) -> TextLaw:
    law: TextLaw = defaultdict(Fraction)
    for text, probability in every_path(run):
        law[text] += probability
    return dict(law)
