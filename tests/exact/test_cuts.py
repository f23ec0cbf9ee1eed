"""Cutting and merging drawn drafts, enumerated on random cases: whatever is left of a draft, the text stays the target's.

Each case draws trees from random tables, with random scores that depend on the path, and cuts them as the engine does: to
nodes, levels and chains (Draft.fit), among other drafts (merge), by calibrated probabilities and a random cost curve
(trimming). Wrong ways to do so are planted at the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from numpy.typing import NDArray

from forerun.controllers import trimming
from forerun.controllers.trimming import trim
from forerun.core.draft import ROOT, Draft
from forerun.core.protocols import Rng, Verifier
from forerun.drafters import compose
from forerun.drafters.compose import merge
from forerun.drafters.tree import TreeBuilder
from forerun.verifiers.block import Block
from forerun.verifiers.kseq import KSeq
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from tests.exact.enumeration import Drafting, Table, Text, plain_probs, random_table, text_probs

RULES: dict[str, Verifier] = {rule.name: rule for rule in (Rejection(), Block(), Traversal(), KSeq())}
LENGTH = 3


def number(*key: object) -> float:
    """A number in [0, 1) that looks random and depends on the key alone."""
    return random.Random(repr(key)).random()


def drawn_tree(
    name: str, table: Table, widths: Sequence[int], nodes: int, *, together: bool = False, scored: bool = True
) -> Drafting:
    """The best `nodes` nodes of a tree that is drawn level by level. Scores look at the path and fall along siblings; they are
    coarse, so that there are ties.

    together: siblings are drawn with replacement, and nothing is left out.
    """

    def drafting(text: Text, rng: Rng) -> Draft:
        tree = TreeBuilder(99 if together else nodes)
        layer: list[tuple[int, Text]] = [(ROOT, ())]
        for width in widths:
            layer = [new for node, path in layer for new in children(tree, node, path, text, width, rng)]
        draft = replace(tree.draft(name), with_replacement=together)
        return draft if scored else replace(draft, scores=None)

    def children(tree: TreeBuilder, node: int, path: Text, text: Text, width: int, rng: Rng) -> list[tuple[int, Text]]:
        q = table.probs((*text, *path))
        left, score, made = q.copy(), 1.0, []
        for which in range(width):
            if not any(left):
                break
            token = rng.sample(left)
            if not together:
                left[token] = 0
            score *= round(number(name, text, path, which), 1) if scored else 0.5
            made.append((tree.add(node, token, score, q), (*path, token)))
        return made

    return drafting


def listed_tree(name: str, vocab: int, widths: Sequence[int], nodes: int) -> Drafting:
    """The same without drawing: the tree depends on the text alone."""

    def drafting(text: Text, rng: Rng) -> Draft:
        tree = TreeBuilder(nodes)
        layer: list[tuple[int, Text]] = [(ROOT, ())]
        for width in widths:
            grown: list[tuple[int, Text]] = []
            for node, path in layer:
                tokens = sorted(range(vocab), key=lambda token, path=path: number(name, text, path, token))  # type: ignore[misc]
                for token in tokens[:width]:
                    added = tree.add(node, token, round(number(name, "score", text, path, token), 1))
                    grown.append((added, (*path, token)))
            layer = grown
        return tree.draft(name)

    return drafting


def with_leaves(name: str, drafting: Drafting, vocab: int) -> Drafting:
    """A draft with a guess that is not drawn below each leaf; what it is depends on the leaf."""

    def extended(text: Text, rng: Rng) -> Draft:
        draft = drafting(text, rng)
        leaves = [node for node in range(len(draft)) if not draft.children(node)]
        tokens = [int(number(name, draft.tokens[leaf], leaf) * vocab) for leaf in leaves]
        assert draft.scores is not None
        return replace(
            draft,
            tokens=(*draft.tokens, *tokens),
            parents=(*draft.parents, *leaves),
            q=(*(draft.q or ()), *(None for _ in leaves)),
            scores=(*draft.scores, *(round(number(name, "score", draft.tokens[leaf]), 1) for leaf in leaves)),
            sources=(*(draft.source for _ in draft.tokens), *(name for _ in leaves)),
        )

    return extended


def calibrated(seed: object, draft: Draft) -> list[float]:
    """The probability that each node is reached, by rates that source, depth and score tell, in no order."""
    reach: list[float] = []
    for node, parent in enumerate(draft.parents):
        rate = number(seed, "rate", draft.source_of(node), draft.depths[node], int(draft.score(node) * 6))
        reach.append(rate * (1.0 if parent == ROOT else reach[parent]))
    return reach


def cost_curve(seed: object) -> Callable[[int], float]:
    """Seconds by rows: flat stretches, slopes and jumps."""
    chooser = random.Random(repr((seed, "curve")))
    seconds = [1.0]
    for _ in range(24):
        seconds.append(seconds[-1] + chooser.choice([0.0, 0.0, 0.05, 0.3, 0.6, 1.2]))
    return lambda rows: seconds[rows - 1]


class Case:
    """One random way to draft and to cut. Each kind's `draft` makes one draft, or two of which the second is another text's."""

    def __init__(self, kind: str, seed: int) -> None:
        chooser = random.Random(repr((kind, seed)))
        self.kind, self.seed, self.vocab = kind, (kind, seed), 2
        self.p = random_table(f"p{seed}", self.vocab)
        q, other = random_table(f"q{seed}", self.vocab), random_table(f"other{seed}", self.vocab)
        self.nodes, self.depth = chooser.choice([2, 3, 4, 5]), chooser.choice([1, 2, 3])
        self.drafting_seconds = chooser.choice([0.0, 0.2, 1.0])
        widths = chooser.choice([(2, 1), (2, 2), (2, 1, 1), (3, 1)])
        levels = chooser.choice([(1,), (1, 1), (1, 1, 1)])
        listed = listed_tree("listed", self.vocab, (2, 2, 1), self.nodes)
        self.parts: tuple[Drafting, ...] = {
            "chain": (drawn_tree("q", q, (1, 1, 1), self.nodes),),
            "tree": (drawn_tree("q", q, widths, self.nodes),),
            "tree, unscored": (drawn_tree("q", q, widths, self.nodes, scored=False),),
            "tree, more than asked for": (drawn_tree("q", q, widths, 99),),
            "with replacement": (drawn_tree("q", q, (2, 2), 99, together=True),),
            "chain with a leaf": (with_leaves("leaf", drawn_tree("q", q, levels, self.nodes), self.vocab),),
            "tree with leaves": (with_leaves("leaves", drawn_tree("q", q, widths, self.nodes), self.vocab),),
            "listed": (listed,),
            "chain+listed": (drawn_tree("q", q, levels, self.nodes), listed),
            "listed+chain": (listed, drawn_tree("q", q, levels, self.nodes)),
            "tree+listed": (drawn_tree("q", q, widths, self.nodes), listed),
            "chain+chain": (drawn_tree("q", q, levels, self.nodes), drawn_tree("other", other, (1, 1, 1), self.nodes)),
            "chain+tree": (drawn_tree("q", q, levels, self.nodes), drawn_tree("other", other, (2, 1, 1), self.nodes)),
            "tree beside another text's": (drawn_tree("q", q, (2, 1), self.nodes),),
        }[kind]
        self.beside = drawn_tree("beside", other, (2, 1), 3) if "beside" in kind else None

    def whole(self, text: Text, rng: Rng) -> list[Draft]:
        drafts = [merge([part(text, rng) for part in self.parts], self.nodes, "merged")]
        return [*drafts, self.beside((1, *text), rng)] if self.beside is not None else drafts

    def fitted(self, text: Text, rng: Rng) -> Draft:
        """Cut to what can be verified."""
        return self.whole(text, rng)[0].fit(nodes=self.nodes, depth=self.depth, tree=self.seed[1] % 3 > 0)

    def trimmed(self, text: Text, rng: Rng) -> Draft:
        """Cut to what a text's end allows, then to what pays."""
        drafts = [draft.fit(nodes=9, depth=self.depth + 1, tree=True) for draft in self.whole(text, rng)]
        curve = cost_curve(self.seed)
        reach = [calibrated(self.seed, draft) for draft in drafts]
        return trim(drafts, reach, len(drafts), lambda rows: curve(rows) + self.drafting_seconds, 1.01)[0]

    def is_exact(self, rule: str, drafting: Drafting) -> bool:
        return text_probs(RULES[rule], self.p, drafting, LENGTH, steps=1) == plain_probs(self.p, LENGTH)


KINDS = (
    "chain",
    "tree",
    "tree, unscored",
    "tree, more than asked for",
    "with replacement",
    "chain with a leaf",
    "listed",
    "chain+listed",
    "listed+chain",
    "tree+listed",
    "chain+chain",
    "chain+tree",
    "tree beside another text's",
)
SEEDS = range(8)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_fitting_and_merging(kind: str, rule: str) -> None:
    for seed in SEEDS:
        case = Case(kind, seed)
        assert case.is_exact(rule, case.fitted), seed


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_trimming(kind: str, rule: str) -> None:
    for seed in SEEDS:
        case = Case(kind, seed)
        assert case.is_exact(rule, case.trimmed), seed


def test_these_cases_cut() -> None:
    """Otherwise the comparisons above would say little: each kind is cut in some cases, and not always to nothing."""
    for kind in KINDS:
        left = []
        for seed in SEEDS:
            case, rng = Case(kind, seed), Sampled(seed)
            for _ in range(40):
                state = rng.state()
                whole = case.whole((), rng)[0]
                rng.set_state(state)
                left.append(len(case.trimmed((), rng)) / len(whole))
        assert min(left) < 1.0, kind
        assert any(0.0 < share < 1.0 for share in left) or kind == "with replacement", kind


class Sampled:
    """Randomness for drafting alone."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def state(self) -> Any:
        return self._random.getstate()

    def set_state(self, state: Any) -> None:
        self._random.setstate(state)

    def accept(self, probability: Any) -> bool:
        return bool(self._random.random() < probability)

    def sample(self, weights: NDArray[Any]) -> int:
        return self._random.choices(range(len(weights)), [float(weight) for weight in weights])[0]


# Planted errors: each has been, or might have been, in the code. What the comparison does not catch is a hole in it.


def by_calibrated_reach(drafts: Sequence[Draft], reach: Sequence[Sequence[float]]) -> list[trimming.Node]:
    """Nodes after their parents and earlier siblings, next the one that is likeliest by calibrated probabilities: another order
    than the one by which the drafter had kept its best nodes."""
    order: list[trimming.Node] = []
    came: set[tuple[int, int]] = {(index, ROOT) for index in range(len(drafts))}
    while True:
        ready = [
            (-reach[index][node], index, node)
            for index, draft in enumerate(drafts)
            for node in range(len(draft))
            if (index, node) not in came
            and (index, draft.parents[node]) in came
            and all((index, before) in came for before in draft.children(draft.parents[node]) if before < node)
        ]
        if not ready:
            return order
        negative, index, node = min(ready)
        came.add((index, node))
        order.append((index, node, -negative))


def into_gaps(drafts: Sequence[Draft], nodes: int, source: str) -> Draft:
    """A merge that puts others' guesses below a drawn tree, wherever its drafter had no room left."""
    tree = TreeBuilder(nodes)

    def below(node: int, places: list[tuple[Draft, int]]) -> None:
        drawing = next((p for p in places if any(map(p[0].drawn, p[0].children(p[1])))), None)
        found: dict[int, list[tuple[Draft, int]]] = {}
        for draft, at in [*([drawing] if drawing else []), *(p for p in places if p is not drawing)]:
            for child in draft.children(at):
                if drawing is None or draft is drawing[0] or draft.tokens[child] in found:
                    found.setdefault(draft.tokens[child], []).append((draft, child))
        for token, same in found.items():
            draft, child = same[0]
            q = None if draft.q is None else draft.q[child]
            below(tree.add(node, token, draft.score(child), q, source=draft.source_of(child)), same)

    below(ROOT, [(draft, ROOT) for draft in drafts if len(draft)])
    return tree.draft(source)


def surest_source(drafts: Sequence[Draft], nodes: int, source: str) -> Draft:
    """A merge that takes the source of a drawn node from whoever guessed the same token most surely."""
    draft = compose.merge(drafts, nodes, source)
    sources = []
    for node in range(len(draft)):
        path = [draft.tokens[step] for step in draft.path_to(node)]
        guesses = [(one.score(at), one.source) for one in drafts for at in [_at(one, path)] if at is not None]
        sources.append(max(guesses)[1])
    return replace(draft, sources=tuple(sources))


def _at(draft: Draft, path: Sequence[int]) -> int | None:
    node: int | None = ROOT
    for token in path:
        node = next((child for child in draft.children(node) if draft.tokens[child] == token), None)  # type: ignore[arg-type]
        if node is None:
            return None
    return node


class CutByTheClock(Case):
    """Counts the seconds that drafting took, which are those of the levels that were drafted."""

    def whole(self, text: Text, rng: Rng) -> list[Draft]:
        # Levels end where the next node is hardly ever reached, which the token before it decides.
        draft = super().whole(text, rng)[0]
        rate = [draft.score(node) for node in range(len(draft))]
        kept = [n for n in range(len(draft)) if all(rate[step] > 0.4 for step in draft.path_to(n)[:-1])]
        draft = draft.keep(kept)
        self.drafting_seconds = 0.5 * max(draft.depths, default=0)
        return [draft]


class DropsByValue(Case):
    """Leaves out a last token that the drafter had found unlikely."""

    def trimmed(self, text: Text, rng: Rng) -> Draft:
        draft = super().trimmed(text, rng)
        q = draft.q[-1] if draft.q is not None and len(draft) else None
        return draft.keep(range(len(draft) - 1)) if q is not None and q[draft.tokens[-1]] < q.max() else draft


def caught(rule: str, cases: Sequence[Case], fitted: bool = False) -> bool:
    return not all(case.is_exact(rule, case.fitted if fitted else case.trimmed) for case in cases)


@pytest.mark.parametrize("rule", RULES)
class TestPlanted:
    def test_cutting_at_the_best_place(self, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trimming, "cut_while_drawing", trimming.cut_at_best)
        for kind in ("chain", "tree", "chain+listed"):
            assert caught(rule, [Case(kind, seed) for seed in range(60)]), kind

    def test_an_order_that_is_not_the_drafters(self, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trimming, "best_first", by_calibrated_reach)
        assert caught(rule, [Case("tree", seed) for seed in range(60)])

    def test_others_in_the_gaps_of_a_drawn_tree(self, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(globals(), "merge", into_gaps)
        assert caught(rule, [Case("tree+listed", seed) for seed in range(100, 300)])

    def test_the_source_of_the_surest(self, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(globals(), "merge", surest_source)
        assert caught(rule, [Case("chain+listed", seed) for seed in range(30)])

    def test_a_drafter_that_fills_its_gaps(self, rule: str) -> None:
        assert caught(rule, [Case("tree with leaves", seed) for seed in range(30)])

    def test_counting_the_time_that_drafting_took(self, rule: str) -> None:
        assert caught(rule, [CutByTheClock("chain", seed) for seed in range(60)])

    def test_dropping_a_drawn_token_by_its_value(self, rule: str) -> None:
        assert caught(rule, [DropsByValue("chain", seed) for seed in SEEDS])


def test_cutting_siblings_apart_that_were_drawn_with_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number tells K-SEQ how to test each. The other rules take them one by one."""
    monkeypatch.setattr(Draft, "together", lambda draft, parent: False)
    assert caught("kseq", [Case("with replacement", seed) for seed in range(80, 90)], fitted=True)
    assert caught("kseq", [Case("with replacement", seed) for seed in range(60)])
    assert not caught("rejection", [Case("with replacement", seed) for seed in range(80, 90)], fitted=True)
