"""Sizes as people write them: `2GiB`, `512M`, `1.5 GB`, a number of bytes."""

from __future__ import annotations

import re

from forerun.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def size(text: str, option: str) -> int:
    """Bytes. K, M, G and T are powers of 1024 with an `i` and of 1000 without. Raises UsageError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or (found[3] and not found[2]):
        raise UsageError(f"{option} is {text[:40]!r}; give a size such as 2GiB or 512MiB.")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** " kmgt".index(found[2].lower() or " "))
