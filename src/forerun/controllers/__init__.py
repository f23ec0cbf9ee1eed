"""How many nodes each request may draft now, and which of them are worth verifying."""

from forerun.controllers.calibration import Calibration
from forerun.controllers.costs import CostCurve, measure
from forerun.controllers.fixed import Fixed
from forerun.controllers.gate import Gate
from forerun.controllers.goodput import Goodput
from forerun.controllers.heuristic import Heuristic

__all__ = ["Calibration", "CostCurve", "Fixed", "Gate", "Goodput", "Heuristic", "measure"]
