"""Drafters made of drafters. Every part observes every round, drafted from or not.

    Chain   a,b   the first that has something to say
    Merge   a+b   all of them in one tree, shared prefixes merged, the likeliest nodes within the budget
    Extend  a>b   what a says, and b after its leaves, the likeliest leaf first; b alone where a is silent

All keep every rule exact. Whether and what a part proposes deterministically may depend on anything drafted before it.
Where a part draws (its nodes have a q), its siblings stay together and alone: at a node below which one part draws,
the others' proposals are left out, since a child put among drawn ones changes what those were drawn from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.protocols import Drafter, DraftSession, Needs
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.drafters.base import Continues, unread
from forerun.drafters.growth import Growth
from forerun.errors import CompositionError

Laws = tuple[NDArray[Any] | None, ...] | None

# How many leaves are extended, the likeliest first.
_EXTENDED = 4
# What a node is taken to be worth when its drafter says nothing.
_UNSCORED = 0.5


def continues(drafter: Drafter) -> bool:
    """Whether a drafter can propose after tokens that are not committed yet."""
    if isinstance(drafter, Composed):
        return all(continues(part) for part in drafter.parts)
    return isinstance(drafter, Continues)


class ComposedSession:
    """One session of each part."""

    def __init__(self, composed: Composed, request: Request, parts: Sequence[DraftSession]) -> None:
        self.request = request
        self.parts = tuple(parts)
        self._composed = composed

    def propose(self, budget: int) -> Draft:
        return self._composed.propose([self], [budget])[0]

    @property
    def unread(self) -> int:
        """Tokens of the text that models among the parts must read before the next draft."""
        return sum(map(unread, self.parts))

    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        """At most `budget` nodes to follow the request's tokens and then those of `path`."""
        return self._composed.propose_after([self], [path], [budget])[0]

    def observe(self, result: StepResult) -> None:
        for part in self.parts:
            part.observe(result)

    def close(self) -> None:
        for part in self.parts:
            part.close()


class Composed:
    """What the compositions share: parts, their needs, their sessions. Raises CompositionError for too few parts."""

    sign = ""

    def __init__(self, parts: Sequence[Drafter]) -> None:
        if len(parts) < 2:
            raise CompositionError(f"a composition with {self.sign!r} needs two drafters or more.")
        self.parts = tuple(parts)
        self.name = self.sign.join(_bracketed(part) for part in parts)
        hidden = {layer for part in parts for layer in part.needs.hidden}
        self.needs = Needs(tuple(sorted(hidden)), any(part.needs.every_row for part in parts))

    @property
    def shares_memory(self) -> bool:
        """Whether a request's drafts depend on other requests."""
        return any(getattr(part, "shares_memory", False) for part in self.parts)

    def open(self, request: Request) -> ComposedSession:
        opened: list[DraftSession] = []
        try:
            for part in self.parts:
                opened.append(part.open(request))
        except BaseException:
            for session in opened:
                session.close()
            raise
        return self.session(request, opened)

    def session(self, request: Request, parts: Sequence[DraftSession]) -> ComposedSession:
        return ComposedSession(self, request, parts)

    def propose(self, sessions: Sequence[DraftSession], budgets: Sequence[int]) -> list[Draft]:
        return self.propose_after(sessions, [()] * len(sessions), budgets)

    def propose_after(
        self, sessions: Sequence[DraftSession], paths: Sequence[Sequence[int]], budgets: Sequence[int]
    ) -> list[Draft]:
        raise NotImplementedError

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def _ask(
        self,
        which: int,
        sessions: Sequence[DraftSession],
        paths: Sequence[Sequence[int]],
        budgets: Sequence[int],
    ) -> list[Draft]:
        """One part's drafts for the sessions whose budget is not zero, all in one call."""
        asked = [i for i, budget in enumerate(budgets) if budget > 0]
        drafts = [EMPTY] * len(sessions)
        if asked:
            part = self.parts[which]
            of_part = [parts_of(sessions[i])[which] for i in asked]
            wanted = [budgets[i] for i in asked]
            if any(len(paths[i]) for i in asked):
                if not isinstance(part, Continues):
                    raise CompositionError(f"{part.name} cannot propose after tokens that are not committed yet.")
                found = part.propose_after(of_part, [paths[i] for i in asked], wanted)
            else:
                found = part.propose(of_part, wanted)
            for i, draft in zip(asked, found, strict=True):
                drafts[i] = draft
        return drafts


class Chain(Composed):
    """`a,b`: the first that has something to say."""

    sign = ","

    def propose_after(
        self, sessions: Sequence[DraftSession], paths: Sequence[Sequence[int]], budgets: Sequence[int]
    ) -> list[Draft]:
        drafts = [EMPTY] * len(sessions)
        for which in range(len(self.parts)):
            left = [0 if len(draft) else budget for draft, budget in zip(drafts, budgets, strict=True)]
            found = self._ask(which, sessions, paths, left)
            drafts = [draft if len(draft) else new for draft, new in zip(drafts, found, strict=True)]
        return drafts


class Merge(Composed):
    """`a+b`: one tree of what all of them say, the likeliest nodes within the budget; earlier parts win ties."""

    sign = "+"

    def propose_after(
        self, sessions: Sequence[DraftSession], paths: Sequence[Sequence[int]], budgets: Sequence[int]
    ) -> list[Draft]:
        found = [self._ask(which, sessions, paths, budgets) for which in range(len(self.parts))]
        return [
            merge([drafts[i] for drafts in found], budget, self.name) if budget > 0 else EMPTY
            for i, budget in enumerate(budgets)
        ]


class Extend(Composed):
    """`a>b>c`: b after the leaves of a, c after theirs. All but the first must be able to propose after a path."""

    sign = ">"

    def __init__(self, parts: Sequence[Drafter]) -> None:
        super().__init__(parts)
        for part in parts[1:]:
            if not continues(part):
                raise CompositionError(
                    f"{part.name} cannot extend another drafter: it proposes after committed text only. Put it first."
                )

    def propose_after(
        self, sessions: Sequence[DraftSession], paths: Sequence[Sequence[int]], budgets: Sequence[int]
    ) -> list[Draft]:
        drafts = self._ask(0, sessions, paths, budgets)
        for which in range(1, len(self.parts)):
            leaves = [_leaves(draft) for draft in drafts]
            while any(leaves):
                left = [
                    budget - len(draft) if ends else 0
                    for budget, draft, ends in zip(budgets, drafts, leaves, strict=True)
                ]
                ends = [waiting.pop(0) if waiting else ROOT for waiting in leaves]
                after = [
                    (*path, *(draft.tokens[node] for node in draft.path_to(end)))
                    for path, draft, end in zip(paths, drafts, ends, strict=True)
                ]
                found = self._ask(which, sessions, after, left)
                drafts = [
                    hang(draft, end, new, self.name) if len(new) else draft
                    for draft, end, new in zip(drafts, ends, found, strict=True)
                ]
        return drafts


def merge(drafts: Sequence[Draft], budget: int, source: str) -> Draft:
    """One tree of several: nodes with the same tokens before them are one; the best `budget` by reach are kept."""
    speaking = [draft for draft in drafts if len(draft)]
    if len(speaking) < 2:
        return speaking[0] if speaking else EMPTY
    tree = Growth(budget)
    _merge_below(tree, ROOT, [(draft, ROOT) for draft in speaking])
    return tree.draft(source)


def _merge_below(tree: Growth, node: int, places: list[tuple[Draft, int]]) -> None:
    """Add the children that several drafts have at one place, best first, and what is below them."""
    drawn = [(draft, at) for draft, at in places if any(_q(draft, child) is not None for child in draft.children(at))]
    found: dict[int, list[tuple[Draft, int]]] = {}
    for draft, at in drawn[:1] or places:
        for child in draft.children(at):
            found.setdefault(draft.tokens[child], []).append((draft, child))
    if drawn:
        # The others may still go on below a child that they have in common with the drawn ones.
        for draft, at in places:
            if (draft, at) != drawn[0]:
                for child in draft.children(at):
                    if draft.tokens[child] in found:
                        found[draft.tokens[child]].append((draft, child))
    scored = [(max(_score(*place) for place in same), token, same) for token, same in found.items()]
    if not drawn:
        scored.sort(key=lambda entry: -entry[0])
    for score, token, same in scored:
        draft, child = same[0]
        belief = None if draft.beliefs is None else draft.beliefs[child]
        # Among drawn siblings the score must not look at which token was drawn, so the others' opinions do not count.
        # Whose guess it was: of those that made the same one, the surest.
        surest, at = max(same, key=lambda place: _score(*place))
        own = _score(draft, child) if drawn else score
        below = tree.add(node, token, own, _q(draft, child), belief, surest.source_of(at))
        _merge_below(tree, below, same)


def hang(draft: Draft, node: int, more: Draft, source: str) -> Draft:
    """`more` below a leaf of `draft` (or below its root, where `draft` is empty)."""
    if not len(draft):
        return more
    offset = len(draft)
    parents = tuple(node if parent == ROOT else parent + offset for parent in more.parents)
    laws = [
        _joined(draft.q, more.q, len(draft), len(more)),
        _joined(draft.beliefs, more.beliefs, len(draft), len(more)),
    ]
    scores = (*_scores(draft), *_scores(more))
    return replace(
        draft,
        tokens=draft.tokens + more.tokens,
        parents=draft.parents + parents,
        q=laws[0],
        beliefs=laws[1],
        scores=scores,
        source=source,
        sources=tuple(one.source_of(i) for one in (draft, more) for i in range(len(one))),
    )


def _joined(one: Laws, other: Laws, n: int, m: int) -> Laws:
    if one is None and other is None:
        return None
    return (*(one or (None,) * n), *(other or (None,) * m))


def _q(draft: Draft, node: int) -> NDArray[Any] | None:
    return None if draft.q is None else draft.q[node]


def _score(draft: Draft, node: int) -> float:
    return _UNSCORED if draft.scores is None else draft.scores[node]


def _scores(draft: Draft) -> Iterable[float]:
    return [_UNSCORED] * len(draft) if draft.scores is None else draft.scores


def _leaves(draft: Draft) -> list[int]:
    """Where a draft can be extended, the likeliest to be reached first; its root where it is empty."""
    if not len(draft):
        return [ROOT]
    reach: list[float] = []
    for parent, score in zip(draft.parents, _scores(draft), strict=True):
        reach.append(score * (1.0 if parent == ROOT else reach[parent]))
    leaves = [node for node in range(len(draft)) if not draft.children(node)]
    return sorted(leaves, key=lambda node: (-reach[node], node))[:_EXTENDED]


def parts_of(session: DraftSession) -> Sequence[DraftSession]:
    """The sessions of a composition's parts."""
    assert isinstance(session, ComposedSession)
    return session.parts


def _bracketed(part: Drafter) -> str:
    return f"({part.name})" if isinstance(part, Composed) else part.name
