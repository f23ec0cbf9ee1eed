"""Replays everything rng can do to a round, with exact probabilities, and adds up the law of the committed text.

A rule asks `Rng` for all its randomness, and the drafters here do too. So one run of a round is a path through a tree
of flips and draws; walking all of them, with fractions, gives the law of what the round commits: no sampling, no
tolerance. The text's law over several rounds follows, and must equal that of plain sampling.
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
from numpy.typing import NDArray

from forerun.core.draft import ROOT, Draft
from forerun.core.protocols import Rng, Verifier
from forerun.core.step import Verdict

Text = tuple[int, ...]
Law = NDArray[Any]
TextLaw = dict[Text, Fraction]
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

    def sample(self, weights: Law) -> int:
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
    """The result of `run` on every path of rng, with the path's probability."""
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
    """A model that is a table: its law after a text, in fractions. `at_one` is its law at temperature 1 (`law` if None)."""

    vocab: int
    table: Callable[[Text], Law]
    at_one: Callable[[Text], Law] | None = None
    _laws: dict[Text, Law] = field(default_factory=dict)

    def law(self, text: Text) -> Law:
        if text not in self._laws:
            self._laws[text] = self.table(text)
        return self._laws[text]

    def belief(self, text: Text) -> Law:
        return self.law(text) if self.at_one is None else self.at_one(text)


def fractions(*weights: Any) -> Law:
    """The law with these weights, normalized."""
    exact = [Fraction(w) for w in weights]
    return np.array([w / sum(exact) for w in exact], dtype=object)


def random_table(name: str, vocab: int, lowest: int = 1, highest: int = 4) -> Table:
    """Another law after each text; `lowest` 0 makes some tokens impossible."""

    def table(text: Text) -> Law:
        numbers = random.Random(f"{name} {text}")
        weights = [numbers.randint(lowest, highest) for _ in range(vocab)]
        if not any(weights):
            weights[numbers.randrange(vocab)] = 1
        return fractions(*weights)

    return Table(vocab, table)


def greedy(model: Table) -> Table:
    """The model at temperature 0."""

    def hot(text: Text) -> Law:
        law = model.law(text)
        return fractions(*(int(token == int(np.argmax(law))) for token in range(model.vocab)))

    return Table(model.vocab, hot, model.law)


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

    def law(self, node: int) -> Law:
        return self.model.law(self.at(node))

    def belief(self, node: int) -> Law:
        return self.model.belief(self.at(node))

    def choose(self, node: int) -> int:
        text = self.at(node)
        if text not in self.chosen:
            self.chosen[text] = self.rng.sample(self.model.law(text))
        return self.chosen[text]


def verdict_tokens(draft: Draft, verdict: Verdict) -> Text:
    """The tokens a verdict commits; its path must be one."""
    assert list(verdict.path) == list(draft.path_to(verdict.path[-1] if verdict.path else ROOT))
    return (*(draft.tokens[node] for node in verdict.path), verdict.bonus)


def round_law(verifier: Verifier, model: Table, drafting: Drafting, text: Text) -> TextLaw:
    """The law of what one round after `text` commits."""

    def run(rng: Rng) -> Text:
        draft = drafting(text, rng)
        return verdict_tokens(draft, verifier.verify(draft, View(model, text, draft, rng), rng))

    law: TextLaw = defaultdict(Fraction)
    for tokens, probability in every_path(run):
        law[tokens] += probability
    assert sum(law.values()) == 1
    return dict(law)


def committed_law(
    verifier: Verifier, model: Table, drafting: Drafting, length: int, *, rounds: int | None = None
) -> TextLaw:
    """The law of the first `length` tokens: `rounds` rounds (all, if None), then plain sampling."""

    @cache
    def after(text: Text, rounds: int | None) -> TextLaw:
        length_left = length - len(text)
        if length_left <= 0:
            return {(): Fraction(1)}
        if rounds == 0:
            return plain_law(model, length_left, text)
        law: TextLaw = defaultdict(Fraction)
        for tokens, probability in round_law(verifier, model, drafting, text).items():
            for ending, p in after(text + tokens, None if rounds is None else rounds - 1).items():
                law[(tokens + ending)[:length_left]] += probability * p
        return dict(law)

    return after((), rounds)


def plain_law(model: Table, length: int, text: Text = ()) -> TextLaw:
    """The law of the next `length` tokens under plain sampling."""
    if length == 0:
        return {(): Fraction(1)}
    return {
        (token, *ending): Fraction(p) * rest
        for token, p in enumerate(model.law(text))
        if p > 0
        for ending, rest in plain_law(model, length - 1, (*text, token)).items()
    }


def expected_accepted(verifier: Verifier, model: Table, drafting: Drafting, text: Text = ()) -> Fraction:
    """The mean number of drafted tokens that one round accepts."""
    return sum(((len(t) - 1) * p for t, p in round_law(verifier, model, drafting, text).items()), Fraction(0))
