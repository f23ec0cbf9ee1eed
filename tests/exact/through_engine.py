"""The real engine, with the enumeration's randomness and distributions that are fractions.

The toy target reads its text back from its KV, and its probabilities are small fractions, which are recovered from its
float logits exactly. A KV that keeps a refused node, or loses an accepted one, gives another fraction and so another text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.backends.toy import ToyModel
from forerun.controllers.fixed import Fixed
from forerun.core.choosing import softmax
from forerun.core.draft import Draft
from forerun.core.model import Model
from forerun.core.noise import Domain, Noise, Stream
from forerun.core.protocols import Controller, Drafter, Rng, Target, Verifier
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import Verdict
from forerun.engine import Engine, Method
from forerun.engine import Sequence as Run
from tests.exact.enumeration import Table, Text, TextProbs, every_path

PROMPT = (1, 0, 1, 0)
# Of the probabilities in these tests; float32 logits tell such fractions apart.
_LARGEST_DENOMINATOR = 15


def toy(table: Table, kind: type[ToyModel] = ToyModel, **options: Any) -> ToyModel:
    """A toy whose distribution after PROMPT + text is the table's after text."""

    def logits(tokens: Text) -> NDArray[np.float32]:
        known = tokens[: len(PROMPT)] == PROMPT
        probs = table.probs(tokens[len(PROMPT) :]) if known else np.ones(table.vocab)
        with np.errstate(divide="ignore"):
            result: NDArray[np.float32] = np.log(probs.astype(np.float64)).astype(np.float32)
        return result

    return kind(table.vocab, 16, logits, **options)


class InFractions:
    """A rule that sees the engine's float distributions as the fractions they came from."""

    def __init__(self, rule: Verifier) -> None:
        self._rule = rule
        self.name, self.exact, self.keyed = rule.name, rule.exact, rule.keyed

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        return self._rule.verify(_exactly(draft), FractionsView(target), rng)


class FractionsView:
    def __init__(self, target: Target) -> None:
        self._target = target
        self.choose = target.choose
        self.output, self.index = getattr(target, "output", None), getattr(target, "index", 0)

    def probs(self, node: int) -> NDArray[Any]:
        return recovered(self._target.probs(node))

    def untruncated(self, node: int) -> NDArray[Any]:
        return recovered(self._target.untruncated(node))  # type: ignore[attr-defined]


def recovered(probs: NDArray[np.float64]) -> NDArray[Any]:
    exact = np.array([_fraction(p) for p in probs.tolist()], dtype=object)
    assert exact.sum() == 1
    assert np.abs(exact.astype(np.float64) - probs).max() < 1e-6
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
        self._rng = rng
        self._streams: dict[tuple[int, int], EnumeratedStream] = {}

    def stream(self, domain: Domain, salt: int = 0) -> Stream:
        return self._streams.setdefault((int(domain), salt), EnumeratedStream(self._rng))


class EnumeratedStream(Stream):
    def __init__(self, rng: Rng) -> None:
        super().__init__(0)
        self._rng = rng
        self._drawn: dict[int, tuple[bytes, list[int]]] = {}

    def order(self, scores: NDArray[Any], position: int, count: int) -> NDArray[np.int64]:
        probs = recovered(softmax(scores))
        asked, drawn = self._drawn.setdefault(position, (scores.tobytes(), []))
        assert asked == scores.tobytes(), "one number drawn for two distributions: the draws are not independent"
        probs[drawn] = 0
        while len(drawn) < count and any(probs):
            token = self._rng.sample(probs)
            drawn.append(token)
            probs[token] = 0
        return np.array(drawn[:count], dtype=np.int64)


def played(
    target: Model,
    drafter: Drafter | Method,
    rule: Verifier,
    requests: Sequence[Request],
    rng: Rng,
    controller: Controller | int,
    **options: Any,
) -> list[Run]:
    """The requests, run to their end in one engine. A drafter alone is one without a model; a number is `Fixed`."""
    method = drafter if isinstance(drafter, Method) else Method(cheap=drafter)
    engine = Engine(
        target,
        {"draft": method},
        [InFractions(rule)],
        Fixed(controller) if isinstance(controller, int) else controller,
        prefill_rows=2,
        rng=lambda sequence: rng,
        noise=lambda request: EnumeratedNoise(rng),
        **options,
    )
    runs = [engine.add(request) for request in requests]
    while not engine.idle:
        engine.step()
    failures = engine.speculator.failures()
    engine.close()
    for error in (*failures.values(), *(run.error for run in runs)):
        if error is not None:
            raise error
    return runs


def written(*setting: Any, **options: Any) -> tuple[Text, ...]:
    """What the requests of `played` write."""
    return tuple(tuple(run.output) for run in played(*setting, **options))


def request(length: int, **options: Any) -> Request:
    return Request(PROMPT, Sampling(temperature=1.0, max_tokens=length), **options)


def probs_of(run: Callable[[Rng], Text]) -> TextProbs:
    """The distribution of what `run` returns."""
    return total(every_path(run))


def total(found: Any) -> dict[Any, Fraction]:
    """The probabilities of equal results, added up."""
    probs: dict[Any, Fraction] = defaultdict(Fraction)
    for result, probability in found:
        probs[result] += probability
    return dict(probs)
