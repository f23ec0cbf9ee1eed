"""The same budget for every request, always: the baseline for everything cleverer."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.draft import Draft
from forerun.core.request import Request
from forerun.core.step import StepResult


class Fixed:
    """`nodes` drafted tokens a round; zero is plain decoding."""

    name = "fixed"

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def budgets(self, live: Sequence[Request]) -> list[int]:
        return [self.nodes] * len(live)

    def trim(self, live: Sequence[Request], drafts: Sequence[Draft], seconds: float) -> list[Draft]:
        return list(drafts)

    def observe(self, results: Sequence[StepResult]) -> None:
        pass

    def forget(self, request: Request) -> None:
        pass
