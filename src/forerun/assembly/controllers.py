"""The controller that the config asks for, with the costs of this machine measured or read from a profile."""

from __future__ import annotations

import contextlib

from forerun.assembly.models import Source
from forerun.config import Config
from forerun.controllers.costs import CostCurve, measure
from forerun.controllers.fixed import Fixed
from forerun.controllers.goodput import Goodput
from forerun.controllers.heuristic import Heuristic
from forerun.controllers.profile import Profile
from forerun.core.protocols import Controller

# Nodes a round where nothing is measured.
_FIXED = 7
# Most nodes a round that goodput may ask for.
_MOST = 16


def controller_for(config: Config, target: Source, drafts: bool, dear: Source | None = None) -> Controller:
    """`fixed` with the asked number of nodes, `heuristic` starting from it, or `goodput` with measured costs.

    dear: the model that drafts, if one does.
    """
    if not drafts:
        return Fixed(0)
    if config.controller == "fixed" or (config.controller == "auto" and config.num_speculative_tokens is not None):
        return Fixed(_FIXED if config.num_speculative_tokens is None else config.num_speculative_tokens)
    if config.controller == "heuristic":
        return Heuristic() if config.num_speculative_tokens is None else Heuristic(config.num_speculative_tokens)
    # Where drafting changes the text, the clock must not decide about it: a seed would not repeat its text.
    if config.controller == "auto" and (target.weights is None or config.cascade is not None):
        return Fixed(_FIXED)
    nodes = _MOST if config.num_speculative_tokens is None else config.num_speculative_tokens
    return Goodput(cost_curve(target), nodes, None if dear is None else cost_curve(dear))


def cost_curve(target: Source) -> CostCurve:
    """What passes of a model cost here: from its profile, or measured in a second or two and kept for the next time."""
    if target.stamp is None:
        return CostCurve(measure(target.model, seconds=0.2, largest=2 * _MOST))
    from forerun.core.files import default_home

    model = target.model
    settings = getattr(model, "settings", ())
    profile = Profile(default_home() / "profiles", *target.stamp, target.name, model.info.backend, *settings)
    curve = profile.read()
    if curve is None:
        seconds = measure(model, seconds=1.5, largest=2 * _MOST)
        # Without a place to keep it, it is measured again next time.
        with contextlib.suppress(OSError):
            profile.write(seconds)
        curve = CostCurve(seconds)
    return curve
