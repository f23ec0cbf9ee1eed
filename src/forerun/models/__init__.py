"""Models by name: a small catalogue, the cache it is pulled into, and `resolve`, from a name to a path."""

from forerun.models.cache import Cache, CachedModel
from forerun.models.catalogue import CATALOGUE, DEFAULT_MODEL, Entry, find
from forerun.models.progress import Progress, TerminalProgress
from forerun.models.pull import pull
from forerun.models.resolve import remove, resolve, verify

__all__ = [
    "CATALOGUE",
    "DEFAULT_MODEL",
    "Cache",
    "CachedModel",
    "Entry",
    "Progress",
    "TerminalProgress",
    "find",
    "pull",
    "remove",
    "resolve",
    "verify",
]
