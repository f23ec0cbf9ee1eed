"""The loop: draft, verify, commit, for any number of requests at once."""

from forerun.engine.engine import Engine
from forerun.engine.sequence import Sequence
from forerun.engine.speculator import Method

__all__ = ["Engine", "Method", "Sequence"]
