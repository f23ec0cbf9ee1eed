"""The controller that the plan asks for, with the costs of this machine measured or read from a profile."""

from __future__ import annotations

from forerun.build.plan import Plan
from forerun.build.sources import Source
from forerun.controllers.costs import CostCurve, measure
from forerun.controllers.fixed import Fixed
from forerun.controllers.goodput import Goodput
from forerun.core.protocols import Controller

# Nodes a round where nothing is measured.
_FIXED = 7
# Most nodes a round that goodput may ask for.
_MOST = 16


def controller_for(plan: Plan, target: Source, drafts: bool) -> Controller:
    """`fixed` with the asked number of nodes, or `goodput` with measured costs."""
    if not drafts:
        return Fixed(0)
    if plan.controller == "fixed" or (plan.controller == "auto" and plan.num_speculative_tokens is not None):
        return Fixed(_FIXED if plan.num_speculative_tokens is None else plan.num_speculative_tokens)
    if plan.controller == "auto" and target.model.info.backend == "toy":
        return Fixed(_FIXED)
    nodes = _MOST if plan.num_speculative_tokens is None else plan.num_speculative_tokens
    return Goodput(CostCurve(measure(target.model, seconds=1.0, largest=2 * _MOST)), nodes)
