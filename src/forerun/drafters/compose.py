"""Drafters made of drafters: `a+b`, all of them in one tree. Every part observes every step, drafted from or not.

Merging keeps every rule exact (see controllers.trimming). Where a part draws (its nodes have a q), the others stand only where
it ends: a child put among drawn ones would change what those were drawn from. Below that, whether and what a part proposes
deterministically may depend on anything that was drawn above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.model import Needs
from forerun.core.protocols import Drafter, DraftRequest, DraftSession
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.tree import TreeBuilder
from forerun.errors import CompositionError


class MergeSession:
    """One session of each part."""

    def __init__(self, parts: Sequence[DraftSession]) -> None:
        self.parts = tuple(parts)

    @property
    def unread(self) -> int:
        """Tokens of the text that models among the parts must read before the next draft."""
        return sum(part.unread for part in self.parts)

    def observe(self, result: StepResult) -> None:
        for part in self.parts:
            part.observe(result)

    def finish(self) -> None:
        for part in self.parts:
            part.finish()

    def close(self) -> None:
        for part in self.parts:
            part.close()


class Merge:
    """`a+b`: one tree of what all of them propose, the likeliest nodes within the budget; earlier parts win ties.

    Raises CompositionError for fewer than two parts.
    """

    def __init__(self, parts: Sequence[Drafter]) -> None:
        if len(parts) < 2:
            raise CompositionError("a composition with '+' needs two drafters or more.")
        self.parts = tuple(parts)
        self.name = "+".join(part.name for part in parts)
        self.needs = union(part.needs for part in parts)

    @property
    def shares_memory(self) -> bool:
        """Whether a text's drafts depend on other texts."""
        return any(getattr(part, "shares_memory", False) for part in self.parts)

    def open(self, transcript: Transcript) -> MergeSession:
        opened: list[DraftSession] = []
        try:
            for part in self.parts:
                opened.append(part.open(transcript))
        except BaseException:
            for session in opened:
                session.close()
            raise
        return MergeSession(opened)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft for each request."""
        sessions = [cast(MergeSession, request.session).parts for request in requests]
        found = [
            part.propose([replace(request, session=of[which]) for request, of in zip(requests, sessions, strict=True)])
            for which, part in enumerate(self.parts)
        ]
        return [merge(drafts, request.nodes, self.name) for *drafts, request in zip(*found, requests, strict=True)]

    def close(self) -> None:
        for part in self.parts:
            part.close()


def union(needs: Any) -> Needs:
    """What several drafters want to see of a pass."""
    wanted = list(needs)
    hidden = {layer for one in wanted for layer in one.hidden}
    return Needs(tuple(sorted(hidden)), any(one.every_row for one in wanted))


def merge(drafts: Sequence[Draft], nodes: int, source: str) -> Draft:
    """One tree of several: nodes with the same tokens before them are one; the best `nodes` by reach are kept.

    Where some draw, the first of them leads: a chain of its own, and the others where it ends. A tree that was drawn stays
    alone: what its drafter left out for want of room depends on what it drew, so nothing may stand in that place.
    """
    speaking = [draft for draft in drafts if len(draft)]
    lead = next((draft for draft in speaking if draft.draws), None)
    if lead is not None and not lead.is_chain:
        return lead
    if len(speaking) < 2:
        return speaking[0] if speaking else EMPTY
    tree = TreeBuilder(nodes)
    chains = [draft.fit(nodes=len(draft), depth=len(draft), tree=not draft.draws) for draft in speaking]
    _merge_below(tree, ROOT, [(draft, ROOT) for draft in chains])
    return tree.draft(source)


Place = tuple[Draft, int]


def _merge_below(tree: TreeBuilder, node: int, places: list[Place]) -> None:
    """Add the children that several drafts have at one place, best first, and what is below them."""
    for same in _led(places) or _alike(places):
        draft, child = same[0]
        q = None if draft.q is None else draft.q[child]
        told = (one.annotations[at] for one, at in same if one.annotations is not None)
        annotation = next((value for value in told if value is not None), None)
        below = tree.add(node, draft.tokens[child], draft.score(child), q, annotation, draft.source_of(child))
        _merge_below(tree, below, same)


def _alike(places: Sequence[Place]) -> list[list[Place]]:
    """The children that drafts have at one place, those with one token together, the one of the highest score first."""
    found: dict[int, list[Place]] = {}
    for draft, at in places:
        for child in draft.children(at):
            found.setdefault(draft.tokens[child], []).append((draft, child))
    alike = [sorted(same, key=lambda place: -place[0].score(place[1])) for same in found.values()]
    return sorted(alike, key=lambda same: -same[0][0].score(same[0][1]))


def _led(places: Sequence[Place]) -> list[list[Place]]:
    """The one child of the first draft that draws here, and those of other drafts with the same token, which may go on below
    it. Empty where none draws.

    The drawn one comes first, for its score and its source: neither may depend on the token that was drawn, as it would if
    the part with the highest score for that token came first.
    """
    drawn = [(draft, child) for draft, at in places for child in draft.children(at) if draft.draws]
    if not drawn:
        return []
    lead, first = drawn[0]
    token = lead.tokens[first]
    others = [(draft, child) for draft, at in places for child in draft.children(at) if draft is not lead]
    return [[drawn[0], *((draft, child) for draft, child in others if draft.tokens[child] == token)]]
