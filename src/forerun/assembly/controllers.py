"""The controller that the configuration asks for, with the costs of this machine measured or read from a profile."""

from __future__ import annotations

import contextlib
import itertools

from forerun.assembly.models import FoundModel
from forerun.config import Config
from forerun.controllers.costs import CostCurve, measure
from forerun.controllers.fixed import Fixed
from forerun.controllers.goodput import Goodput
from forerun.controllers.heuristic import Heuristic
from forerun.controllers.profile import Profile
from forerun.core.protocols import Controller

# Nodes a step where nothing is measured.
_FIXED = 7
# Most nodes a step that goodput may ask for.
_MOST = 16
# Costs are measured over short texts: over thousands of tokens, a row costs more. Leaves room for that.
_SHORT_CONTEXT = 0.8
# Most prompt tokens of a pass in which others write.
_MOST_SHARED = 256


def controller_for(
    config: Config, target: FoundModel, drafts: bool, draft_model: FoundModel | None = None
) -> Controller:
    """`fixed` with the asked number of nodes, `heuristic` starting from it, or `goodput` with measured costs.

    draft_model: the model that drafts, if one does.
    """
    nodes = config.num_speculative_tokens
    if not isinstance(config.controller, str):
        return config.controller
    if not drafts:
        return Fixed(0)
    if config.controller == "fixed" or (config.controller == "auto" and nodes is not None):
        return Fixed(_FIXED if nodes is None else nodes)
    if config.controller == "heuristic":
        return Heuristic() if nodes is None else Heuristic(nodes)
    if config.controller == "auto" and (target.weights is None or config.cascade is not None):
        return Fixed(_FIXED)
    return Goodput(
        cost_curve(target),
        _MOST if nodes is None else nodes,
        None if draft_model is None else cost_curve(draft_model),
        unclocked=_FIXED if config.controller == "auto" else None,
    )


def shared_rows(config: Config, target: FoundModel, controller: Controller) -> int | None:
    """Prompt tokens of a pass in which others write, such that it takes at most `prefill_slowdown` times as long; None is no
    bound. Measured for one text that is written: beside several, or with drafts, the pass grows less."""
    if config.prefill_slowdown is None or target.weights is None:
        return None
    curve = controller.curve if isinstance(controller, Goodput) else cost_curve(target)
    most = config.prefill_slowdown * curve(1) * _SHORT_CONTEXT
    return next(rows for rows in itertools.count(1) if rows == _MOST_SHARED or curve(rows + 2) > most)


def cost_curve(found: FoundModel) -> CostCurve:
    """What passes of a model cost here: from its profile, or measured in a second or two and kept for the next time."""
    if found.stamp is None:
        return CostCurve(measure(found.model, seconds=0.2, largest=2 * _MOST))
    from forerun.core.files import default_home

    model = found.model
    settings = getattr(model, "settings", ())
    profile = Profile(default_home() / "profiles", *found.stamp, found.name, model.info.backend, *settings)
    curve = profile.read()
    if curve is None:
        seconds = measure(model, seconds=1.5, largest=2 * _MOST)
        # Without a place to keep it, it is measured again next time.
        with contextlib.suppress(OSError):
            profile.write(seconds)
        curve = CostCurve(seconds)
    return curve
