"""The real engine under real controllers, on a clock that the models' passes move: what is timed depends on rows alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from forerun.backends.toy import ToyModel, ToyOutput
from forerun.controllers.costs import CostCurve
from forerun.controllers.goodput import Goodput
from forerun.core.draft import Draft
from forerun.core.model import NOTHING, ForwardInput, Needs
from forerun.core.protocols import Candidate, DraftingCost

Seconds = Callable[[float], float]


class Clock:
    """Stands for the module `time` where seconds are measured."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class TimedToy(ToyModel):
    """A toy whose passes take so many seconds for so many rows."""

    clock = Clock()
    seconds: Seconds = staticmethod(lambda rows: 0.0)

    @contextmanager
    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Iterator[ToyOutput]:
        with super().forward(inputs, needs) as output:
            self.clock.now += self.seconds(sum(len(given.input_tokens) + len(given.draft) for given in inputs))
            yield output


class FrozenCurve(CostCurve):
    """Costs that no pass changes."""

    def observe(self, rows: int, seconds: float) -> None:
        pass


# Seconds of a pass of the target by rows: the shapes that machines have, and the ones that are hard to cut by.
CURVES: Mapping[str, Mapping[int, float]] = {
    "convex": {1: 1.0, 2: 1.1, 3: 1.3, 4: 1.7, 6: 3.0, 8: 5.0},
    "jump after two rows": {1: 1.0, 2: 1.0, 3: 1.7, 4: 1.7, 6: 1.8, 8: 3.5},
    "jump after three rows": {1: 1.0, 2: 1.02, 3: 1.04, 4: 2.2, 6: 2.2, 8: 2.3},
    "linear": {1: 1.0, 64: 1.0 + 0.3 * 63},
}


class CountingTrim(Goodput):
    """Goodput, and how many nodes it was given and kept."""

    given = kept = 0

    def trim(
        self, candidates: Sequence[Candidate], drafts: Sequence[Draft], rows: int, cost: DraftingCost
    ) -> list[Draft]:
        kept = super().trim(candidates, drafts, rows, cost)
        type(self).given += sum(map(len, drafts))
        type(self).kept += sum(map(len, kept))
        return kept
