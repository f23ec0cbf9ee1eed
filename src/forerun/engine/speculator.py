"""What is drafted in a step, and how much of it is verified. No part of that decision lives in a drafter.

    cheap drafts -> the controller's plan -> drafts of models where it wants them -> merge -> trim -> (the pass) -> learn

A *method* is what can draft for a sequence: drafters that run no model, which are asked unless the controller found that not
even that pays, and one that runs a model, asked where the controller expects it to be worth more than the draft at hand.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from typing import Any, Literal

from forerun.core.draft import EMPTY, Draft
from forerun.core.model import ModelInfo, Needs
from forerun.core.protocols import Candidate, Controller, Drafter, DraftingCost, DraftRequest, ModelPlan
from forerun.core.step import StepResult
from forerun.drafters.compose import merge, union
from forerun.engine.guarded import GuardedDrafter
from forerun.engine.scheduler import Turn
from forerun.engine.sequence import Sequence

Role = Literal["cheap", "model"]
_ROLES: tuple[Role, Role] = ("cheap", "model")


@dataclass(frozen=True)
class Method:
    """What drafts: drafters that run no model, and one that does. Either may be missing."""

    cheap: Drafter | None = None
    model: Drafter | None = None


class Speculator:
    """Drafts for sequences, each by its own method.

    methods: by name; a sequence names one, or none. controller: decides how much. info: of the target.
    """

    def __init__(self, methods: Mapping[str, Method], controller: Controller, info: ModelInfo) -> None:
        self.methods = methods
        self.controller = controller
        self._info = info
        drafters = [drafter for method in methods.values() for drafter in (method.cheap, method.model)]
        self._guarded = {id(drafter): GuardedDrafter(drafter, info) for drafter in drafters if drafter is not None}
        # Texts whose drafters without a model are left alone in this step; seconds that all took to learn from the last one.
        self._resting: set[Sequence] = set()
        self._learning = 0.0
        self.needs: Needs = union(drafter.needs for drafter in drafters if drafter is not None)

    def draft(self, turns: Several[Turn]) -> list[Draft]:
        """One draft per turn; a turn that ends inside a prompt drafts nothing."""
        nodes = [self._nodes(turn) for turn in turns]
        drafting = [index for index, most in enumerate(nodes) if most > 0]
        asked = [turns[index] for index in drafting]
        started = time.perf_counter()
        self._resting = {turn.sequence for turn in asked if not self.controller.asks(turn.sequence)}
        candidates = self._cheap_drafts(asked, [nodes[index] for index in drafting])
        seconds = self._learning + time.perf_counter() - started
        plan = self.controller.plan(candidates)
        drafts, cost = self._model_drafts(asked, candidates, plan)
        for turn, draft in zip(asked, drafts, strict=True):
            turn.sequence.offered += len(draft)
        rows = sum(len(turn.input_tokens) for turn in turns)
        trimmed = self.controller.trim(candidates, drafts, rows, replace(cost, seconds=seconds))
        found = dict(zip(drafting, trimmed, strict=True))
        return [found.get(index, EMPTY) for index in range(len(turns))]

    def learn(self, results: Several[StepResult]) -> None:
        """Let drafters and controller learn what a pass did. Called inside the pass, whose rows they look at."""
        started = time.perf_counter()
        for result in results:
            assert isinstance(result.sequence, Sequence)
            for role in _ROLES:
                drafter = self._drafter(result.sequence, role)
                if drafter is not None and not (role == "cheap" and result.sequence in self._resting):
                    drafter.observe(result)
        self._learning = time.perf_counter() - started
        self.controller.observe(results)

    def finish(self, sequence: Sequence) -> None:
        """A text has ended: drafters keep what later texts may draft from."""
        for drafter in self._of(sequence):
            drafter.finish(sequence)
        self.controller.forget(sequence)

    def release(self, sequence: Sequence) -> None:
        """Give up what drafters hold for a text; they begin anew when they are asked again."""
        for drafter in self._of(sequence):
            drafter.release(sequence)

    def failures(self) -> dict[str, BaseException]:
        """Drafters that failed and are not asked any more, by name, and what made them fail."""
        return {one.drafter.name: one.failure for one in self._guarded.values() if one.failure is not None}

    def close(self) -> None:
        """Release the drafters."""
        for drafter in self._guarded.values():
            drafter.close()

    def _of(self, sequence: Sequence) -> list[GuardedDrafter]:
        """The drafters of a sequence."""
        return [drafter for role in _ROLES if (drafter := self._drafter(sequence, role)) is not None]

    def _nodes(self, turn: Turn) -> int:
        """Most nodes to draft for a turn: what controller and request allow, and memory and context have room for.

        No nodes where no level could be kept.
        """
        sequence = turn.sequence
        if not (turn.decodes and self._info.rollback and sequence.method in self.methods and self._depth(sequence) > 0):
            return 0
        nodes = self.controller.nodes(sequence)
        asked = sequence.request.speculation.num_speculative_tokens
        return min(nodes if asked is None else min(asked, nodes), turn.nodes, self._room(sequence))

    def _room(self, sequence: Sequence) -> int:
        """Tokens until the context is full."""
        return self._info.context - len(sequence.tokens)

    def _depth(self, sequence: Sequence) -> int:
        """Most levels that can be kept: never past the context or the text's last token, and the bonus takes one place."""
        room = self._room(sequence)
        return room if sequence.remaining is None else min(room, sequence.remaining - 1)

    def _cheap_drafts(self, turns: Several[Turn], nodes: Several[int]) -> list[Candidate]:
        """What drafters without a model propose, and what a model would have to read first."""
        requests = [
            None if turn.sequence in self._resting else self._request(turn, "cheap", most)
            for turn, most in zip(turns, nodes, strict=True)
        ]
        drafts = self._propose(turns, "cheap", requests)
        return [
            Candidate(turn.sequence, draft, most, self._depth(turn.sequence), self._unread(turn.sequence))
            for turn, most, draft in zip(turns, nodes, drafts, strict=True)
        ]

    def _model_drafts(
        self, turns: Several[Turn], candidates: Several[Candidate], plan: ModelPlan
    ) -> tuple[list[Draft], DraftingCost]:
        """What models propose where the plan gives them levels, with the drafts at hand; and what that took."""
        at_hand = [candidate.draft for candidate in candidates]
        if not any(plan.levels):
            return at_hand, DraftingCost()
        started = time.perf_counter()
        requests = [
            self._request(
                turn,
                "model",
                candidate.nodes if levels > 0 else 0,
                depth=min(levels, candidate.depth),
                min_probability=plan.min_probability,
                kv=turn.sequence.kv,
            )
            for turn, candidate, levels in zip(turns, candidates, plan.levels, strict=True)
        ]
        drafts = self._propose(turns, "model", requests)
        seconds = time.perf_counter() - started
        still = [self._unread(turn.sequence) for turn in turns]
        read = [max(0, (c.unread or 0) - (left or 0)) for c, left in zip(candidates, still, strict=True)]
        levels = max(max(draft.depths, default=0) for draft in drafts)
        merged = [
            merge([own, cheap], candidate.nodes, own.source) if len(own) else cheap
            for own, cheap, candidate in zip(drafts, at_hand, candidates, strict=True)
        ]
        return merged, DraftingCost(model_seconds=seconds, levels=levels, read=read)

    def _request(self, turn: Turn, role: Role, nodes: int, **wanted: Any) -> DraftRequest | None:
        """What to ask of a sequence's drafter; None where it has none, or nothing is wanted or to be had."""
        guarded = self._drafter(turn.sequence, role) if nodes > 0 else None
        session = None if guarded is None else guarded.session(turn.sequence)
        return None if session is None else DraftRequest(session, nodes, **wanted)

    def _propose(self, turns: Several[Turn], role: Role, requests: Several[DraftRequest | None]) -> list[Draft]:
        """Ask each drafter once, for all of its sequences together."""
        groups: dict[int, tuple[GuardedDrafter, list[int], list[DraftRequest]]] = {}
        for index, (turn, request) in enumerate(zip(turns, requests, strict=True)):
            guarded = self._drafter(turn.sequence, role)
            if guarded is not None and request is not None:
                _, indices, wanted = groups.setdefault(id(guarded), (guarded, [], []))
                indices.append(index)
                wanted.append(request)
        drafts = [EMPTY] * len(turns)
        for guarded, indices, wanted in groups.values():
            found = guarded.propose([turns[index].sequence for index in indices], wanted)
            for index, request, draft in zip(indices, wanted, found, strict=True):
                depth = self._depth(turns[index].sequence)
                drafts[index] = draft.fit(nodes=request.nodes, depth=depth, tree=self._info.tree)
        return drafts

    def _drafter(self, sequence: Sequence, role: Role) -> GuardedDrafter | None:
        drafter = getattr(self.methods.get(sequence.method, Method()), role)
        return None if drafter is None else self._guarded[id(drafter)]

    def _unread(self, sequence: Sequence) -> int | None:
        model = self._drafter(sequence, "model")
        return None if model is None else model.unread(sequence)
