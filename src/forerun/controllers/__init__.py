"""How many nodes each request may draft now."""

from forerun.controllers.fixed import Fixed

__all__ = ["Fixed"]
