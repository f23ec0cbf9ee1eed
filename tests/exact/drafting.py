"""Drafters for the enumeration: each draws from a table, asking rng for every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.protocols import Rng
from forerun.verifiers.distributions import Probs
from tests.exact.enumeration import Drafting, Table, Text, fractions

Sizes = Callable[[Text, int], int]


class Growing:
    """A draft being grown, node by node."""

    def __init__(self, text: Text, with_replacement: bool) -> None:
        self.text = text
        self.with_replacement = with_replacement
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.q: list[Probs | None] = []
        self.annotations: list[Probs | None] = []

    def at(self, node: int) -> Text:
        return self.text if node == ROOT else (*self.at(self.parents[node]), self.tokens[node])

    def add(self, parent: int, token: int, q: Probs | None, annotation: Probs | None = None) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.q.append(q)
        self.annotations.append(annotation)
        return len(self.tokens) - 1

    def done(self) -> Draft:
        told = any(annotation is not None for annotation in self.annotations)
        return Draft(
            tuple(self.tokens),
            tuple(self.parents),
            tuple(self.q),
            self.with_replacement,
            "test",
            annotations=tuple(self.annotations) if told else None,
        )


def tree(drafter: Table, widths: Sequence[int], *, with_replacement: bool = False, annotate: bool = False) -> Drafting:
    """Each node at depth d gets widths[d] children drawn from the drafter (fewer where it has fewer tokens)."""

    def drafting(text: Text, rng: Rng) -> Draft:
        growing = Growing(text, with_replacement)
        layer = [ROOT]
        for width in widths:
            layer = [child for node in layer for child in children(growing, node, width, rng)]
        return growing.done()

    def children(growing: Growing, node: int, width: int, rng: Rng) -> list[int]:
        at = growing.at(node)
        q = drafter.probs(at)
        annotation = drafter.untruncated(at) if annotate else None
        left = q.copy()
        made: list[int] = []
        for _ in range(width):
            if not any(left):
                break
            token = rng.sample(left)
            made.append(growing.add(node, token, q, annotation))
            if not with_replacement:
                left[token] = 0
        return made

    return drafting


def chain(drafter: Table, length: int, *, annotate: bool = False) -> Drafting:
    return tree(drafter, [1] * length, annotate=annotate)


def fixed(tokens: Sequence[int], parents: Sequence[int]) -> Drafting:
    """The same tree every time, without q."""
    return lambda text, rng: Draft(tuple(tokens), tuple(parents))


def looked_up(vocab: int, widths: Sequence[int], q: bool = False) -> Drafting:
    """A deterministic tree that depends on the text; `q` writes the one-hot distributions down."""

    def drafting(text: Text, rng: Rng) -> Draft:
        growing = Growing(text, False)
        layer = [ROOT]
        for width in widths:
            grown: list[int] = []
            for node in layer:
                start = sum(growing.at(node)) + len(growing.at(node))
                for offset in range(min(width, vocab)):
                    token = (start + offset) % vocab
                    hot = fractions(*(int(v == token) for v in range(vocab))) if q else None
                    grown.append(growing.add(node, token, hot))
            layer = grown
        return growing.done()

    return drafting


def mixed(drafter: Table) -> Drafting:
    """Under the root a deterministic child, then two drawn ones; under the first drawn one a drawn and a deterministic."""

    def drafting(text: Text, rng: Rng) -> Draft:
        growing = Growing(text, True)
        q = drafter.probs(text)
        growing.add(ROOT, len(text) % drafter.vocab, None)
        first = growing.add(ROOT, rng.sample(q), q)
        growing.add(ROOT, rng.sample(q), q)
        below = drafter.probs(growing.at(first))
        growing.add(first, rng.sample(below), below)
        growing.add(first, 0, None)
        return growing.done()

    return drafting


def merged(first: Table, second: Table) -> Drafting:
    """One child of the root from each of two drafters, drawn independently, then two more without replacement."""

    def drafting(text: Text, rng: Rng) -> Draft:
        growing = Growing(text, False)
        for drafter in (first, second):
            q = drafter.probs(text)
            growing.add(ROOT, rng.sample(q), q)
        below = second.probs(growing.at(0))
        token = rng.sample(below)
        growing.add(0, token, below)
        left = below.copy()
        left[token] = 0
        if any(left):
            growing.add(0, rng.sample(left), below.copy())
        return growing.done()

    return drafting


def competing(drafter: Table, *, with_replacement: bool = False) -> Drafting:
    """Two children of the root, of which only the one after which the drafter is surer is continued: its sibling's
    value decides about what is drafted below a node."""

    def drafting(text: Text, rng: Rng) -> Draft:
        growing = Growing(text, with_replacement)
        q = drafter.probs(text)
        left = q.copy()
        for _ in range(2):
            token = rng.sample(left)
            growing.add(ROOT, token, q)
            if not with_replacement:
                left[token] = 0
            if not any(left):
                break
        best = max(range(len(growing.tokens)), key=lambda node: drafter.probs(growing.at(node)).max())
        below = drafter.probs(growing.at(best))
        growing.add(best, rng.sample(below), below)
        return growing.done()

    return drafting


def cousins(drafter: Table) -> Drafting:
    """Two children of the root, each continued; one draw serves both (right for no rule that looks at both)."""

    def drafting(text: Text, rng: Rng) -> Draft:
        growing = Growing(text, False)
        q, below = drafter.probs(text), drafter.probs((*text, 0))
        first = growing.add(ROOT, rng.sample(q), q)
        left = q.copy()
        left[growing.tokens[first]] = 0
        second = growing.add(ROOT, rng.sample(left), q)
        token = rng.sample(below)
        for parent in (first, second):
            growing.add(parent, token, below)
        return growing.done()

    return drafting


def stopping(drafter: Table, longest: int) -> Drafting:
    """A chain that ends after a token of low probability, which stays in it."""

    def drafting(text: Text, rng: Rng) -> Draft:
        growing = Growing(text, False)
        node = ROOT
        for _ in range(longest):
            q = drafter.probs(growing.at(node))
            token = rng.sample(q)
            node = growing.add(node, token, q)
            if q[token] < q.max():
                break
        return growing.done()

    return drafting


def sometimes(drafting: Drafting) -> Drafting:
    """No draft after every second length of text: plain decoding in between."""
    return lambda text, rng: EMPTY if len(text) % 2 else drafting(text, rng)


def fitted(drafting: Drafting, **limits: Any) -> Drafting:
    """Cut to what a target can verify."""
    return lambda text, rng: drafting(text, rng).fit(**limits)
