"""Replays everything that randomness can do to a step, with exact probabilities, and adds up the committed text's.

A rule asks `Rng` for all its randomness, and the drafters here do too. So one run of a step is a path through a tree
of tests and draws; walking all of them, with fractions, gives the probability of each text that the step may commit: no
sampling, no tolerance. The distribution of the text over several steps follows, and must equal that of plain sampling.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar

import numpy as np

from forerun.core.draft import ROOT, Draft
from forerun.core.protocols import Rng, Verifier
from forerun.core.step import Verdict
from forerun.verifiers.distributions import Probs

Text = tuple[int, ...]
TextProbs = dict[Text, Fraction]
Drafting = Callable[[Text, Rng], Draft]
T = TypeVar("T")


class Replay:
    """Rng that follows a script of branches, and takes the first possible branch after its end."""

    def __init__(self, script: list[int]) -> None:
        self._script = script
        self.probability = Fraction(1)
        self.widths: list[int] = []
        self.taken: list[int] = []

    def accept(self, probability: Any) -> bool:
        assert 0 <= probability <= 1, probability
        return bool(self._branch([1, 0], [probability, 1 - probability]))

    def sample(self, weights: Probs) -> int:
        assert all(w >= 0 for w in weights), weights
        return self._branch(range(len(weights)), weights)

    def _branch(self, values: Sequence[int], weights: Iterable[Any]) -> int:
        possible = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight > 0]
        assert possible, "nothing can happen"
        at = len(self.taken)
        choice = self._script[at] if at < len(self._script) else 0
        self.taken.append(choice)
        self.widths.append(len(possible))
        value, weight = possible[choice]
        if len(possible) > 1:
            self.probability *= Fraction(weight) / Fraction(sum(w for _, w in possible))
        return value


def every_path(run: Callable[[Rng], T]) -> Iterator[tuple[T, Fraction]]:
    """The result of `run` on every path of its randomness, with the path's probability."""
    script: list[int] | None = []
    while script is not None:
        rng = Replay(script)
        yield run(rng), rng.probability
        script = _next(rng)


def _next(rng: Replay) -> list[int] | None:
    for at in reversed(range(len(rng.taken))):
        if rng.taken[at] + 1 < rng.widths[at]:
            return [*rng.taken[:at], rng.taken[at] + 1]
    return None


@dataclass
class Table:
    """A model that is a table of its distributions after a text, in fractions.

    at_one: the same at temperature 1 and without truncation; None where that is what is sampled.
    """

    vocab: int
    table: Callable[[Text], Probs]
    at_one: Callable[[Text], Probs] | None = None
    _made: dict[Text, Probs] = field(default_factory=dict)

    def probs(self, text: Text) -> Probs:
        if text not in self._made:
            self._made[text] = self.table(text)
        return self._made[text]

    def untruncated(self, text: Text) -> Probs:
        return self.probs(text) if self.at_one is None else self.at_one(text)


def fractions(*weights: Any) -> Probs:
    """The distribution with these weights, normalized."""
    exact = [Fraction(w) for w in weights]
    return np.array([w / sum(exact) for w in exact], dtype=object)


def random_table(name: str, vocab: int, lowest: int = 1, highest: int = 4) -> Table:
    """Another distribution after each text; `lowest` 0 makes some tokens impossible."""

    def table(text: Text) -> Probs:
        numbers = random.Random(f"{name} {text}")
        weights = [numbers.randint(lowest, highest) for _ in range(vocab)]
        if not any(weights):
            weights[numbers.randrange(vocab)] = 1
        return fractions(*weights)

    return Table(vocab, table)


def greedy(model: Table) -> Table:
    """The model at temperature 0."""

    def hot(text: Text) -> Probs:
        best = int(np.argmax(model.probs(text)))
        return fractions(*(int(token == best) for token in range(model.vocab)))

    return Table(model.vocab, hot, model.probs)


@dataclass
class View:
    """The target's opinion at the nodes of a draft; `choose` draws once per text and remembers (keyed noise)."""

    model: Table
    text: Text
    draft: Draft
    rng: Rng
    chosen: dict[Text, int] = field(default_factory=dict)

    def at(self, node: int) -> Text:
        return self.text + tuple(self.draft.tokens[n] for n in self.draft.path_to(node))

    def probs(self, node: int) -> Probs:
        return self.model.probs(self.at(node))

    def untruncated(self, node: int) -> Probs:
        return self.model.untruncated(self.at(node))

    def choose(self, node: int) -> int:
        text = self.at(node)
        if text not in self.chosen:
            self.chosen[text] = self.rng.sample(self.model.probs(text))
        return self.chosen[text]


def verdict_tokens(draft: Draft, verdict: Verdict) -> Text:
    """The tokens a verdict commits; its path must be one."""
    assert list(verdict.path) == list(draft.path_to(verdict.path[-1] if verdict.path else ROOT))
    return (*(draft.tokens[node] for node in verdict.path), verdict.bonus)


def step_probs(verifier: Verifier, model: Table, drafting: Drafting, text: Text) -> TextProbs:
    """What one step after `text` commits, and how likely."""

    def run(rng: Rng) -> Text:
        draft = drafting(text, rng)
        return verdict_tokens(draft, verifier.verify(draft, View(model, text, draft, rng), rng))

    found: TextProbs = defaultdict(Fraction)
    for tokens, probability in every_path(run):
        found[tokens] += probability
    assert sum(found.values()) == 1
    return dict(found)


def text_probs(
    verifier: Verifier, model: Table, drafting: Drafting, length: int, *, steps: int | None = None
) -> TextProbs:
    """The distribution of the first `length` tokens: `steps` steps (all, if None), then plain sampling."""

    @cache
    def after(text: Text, steps: int | None) -> TextProbs:
        length_left = length - len(text)
        if length_left <= 0:
            return {(): Fraction(1)}
        if steps == 0:
            return plain_probs(model, length_left, text)
        found: TextProbs = defaultdict(Fraction)
        for tokens, probability in step_probs(verifier, model, drafting, text).items():
            for ending, p in after(text + tokens, None if steps is None else steps - 1).items():
                found[(tokens + ending)[:length_left]] += probability * p
        return dict(found)

    return after((), steps)


def plain_probs(model: Table, length: int, text: Text = ()) -> TextProbs:
    """The distribution of the next `length` tokens under plain sampling."""
    if length == 0:
        return {(): Fraction(1)}
    return {
        (token, *ending): Fraction(p) * rest
        for token, p in enumerate(model.probs(text))
        if p > 0
        for ending, rest in plain_probs(model, length - 1, (*text, token)).items()
    }


def expected_accepted(verifier: Verifier, model: Table, drafting: Drafting, text: Text = ()) -> Fraction:
    """The mean number of drafted tokens that one step accepts."""
    return sum(((len(t) - 1) * p for t, p in step_probs(verifier, model, drafting, text).items()), Fraction(0))
