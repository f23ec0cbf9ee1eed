"""The loop: draft, verify, commit, for any number of requests at once."""

from forerun.engine.engine import Engine

__all__ = ["Engine"]
