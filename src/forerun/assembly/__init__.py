"""From names to objects: the only place that names classes. Needs and capabilities are matched here, once."""

from forerun.assembly.assembly import Assembly, build
from forerun.assembly.models import FoundModel, find_model

__all__ = ["Assembly", "FoundModel", "build", "find_model"]
