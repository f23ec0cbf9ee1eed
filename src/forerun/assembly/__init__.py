"""From names to objects: the only place that names classes. Needs and capabilities are matched here, once."""

from forerun.assembly.assembly import Assembly, build
from forerun.assembly.models import Source, find_model

__all__ = ["Assembly", "Source", "build", "find_model"]
