"""From names to objects: the only place that names classes. Needs and capabilities are matched here, once."""

from forerun.build.assembly import Assembly, build
from forerun.build.plan import BACKENDS, VERIFIERS, Plan
from forerun.build.sources import Source, find_model

__all__ = ["BACKENDS", "VERIFIERS", "Assembly", "Plan", "Source", "build", "find_model"]
