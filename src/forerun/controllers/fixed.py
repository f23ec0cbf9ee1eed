"""The same number of nodes for every text, always: the baseline for controllers that decide by what they see."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.draft import Draft
from forerun.core.protocols import Candidate, DraftingCost, ModelPlan
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript

# Levels for a drafter that runs a model, where the number of nodes decides.
NODES_DECIDE = 1 << 20


class Untimed:
    """What controllers share that do not look at the clock: all drafters are asked, all that is drafted is verified, and a
    model drafts where the other drafters propose nothing."""

    def asks(self, transcript: Transcript) -> bool:
        return True

    def plan(self, candidates: Sequence[Candidate]) -> ModelPlan:
        return ModelPlan([0 if len(candidate.draft) else NODES_DECIDE for candidate in candidates])

    def trim(
        self, candidates: Sequence[Candidate], drafts: Sequence[Draft], rows: int, cost: DraftingCost
    ) -> list[Draft]:
        return list(drafts)

    def observe(self, results: Sequence[StepResult]) -> None:
        pass

    def forget(self, transcript: Transcript) -> None:
        pass


class Fixed(Untimed):
    """`most` drafted tokens a step; zero is plain decoding."""

    name = "fixed"

    def __init__(self, most: int) -> None:
        self.most = most

    def nodes(self, transcript: Transcript) -> int:
        return self.most
