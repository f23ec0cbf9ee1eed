"""Texts, drafts and candidates for controllers, and a step of a controller in the order in which an engine asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.core.draft import EMPTY, Draft
from forerun.core.protocols import Candidate, Controller, DraftingCost
from forerun.core.request import Request, Speculation
from forerun.core.sampling import Sampling
from forerun.core.transcript import Transcript


def text(
    prompt: Sequence[int] = (1, 2),
    written: int = 1,
    *,
    keyed: bool = True,
    asked: int | None = None,
    memory: str = "",
    **sampling: Any,
) -> Transcript:
    """One that has written so many tokens. asked: the nodes that its request wants."""
    chosen = Sampling(**{"max_tokens": None} | sampling)
    request = Request(prompt, chosen, speculation=Speculation(num_speculative_tokens=asked), memory=memory)
    one = Transcript(request, keyed=keyed)
    for _ in range(written):
        one.add(7)
    return one


def chain(*scores: float, source: str = "s") -> Draft:
    return Draft(tuple(range(len(scores))), tuple(range(-1, len(scores) - 1)), scores=scores, source=source)


def candidate(one: Transcript, draft: Draft = EMPTY, unread: int | None = None, nodes: int = 16) -> Candidate:
    depth = 1000 if one.remaining is None else one.remaining - 1
    return Candidate(one, draft, nodes, depth, unread)


def trimmed(
    controller: Controller,
    texts: Sequence[Transcript],
    drafts: Sequence[Draft],
    cost: DraftingCost = DraftingCost(),
    rows: int | None = None,
) -> list[Draft]:
    """What is verified of drafts of drafters that run no model, which say nothing where they are not asked."""
    drafts = [draft if controller.asks(one) else EMPTY for one, draft in zip(texts, drafts, strict=True)]
    candidates = [candidate(one, draft) for one, draft in zip(texts, drafts, strict=True)]
    controller.plan(candidates)
    return controller.trim(candidates, drafts, len(texts) if rows is None else rows, cost)
