"""JSON as the command line reads and writes it: what comes in is judged strictly, and what goes out is always JSON."""

from __future__ import annotations

import json
import math
from typing import Any

# Deeper values are nobody's prompt; Python's own limit depends on who asks.
_DEEPEST = 100


def parse(text: str) -> Any:
    """The value of a JSON text.

    Raises ValueError, in a few words, for what is not JSON (NaN and Infinity are not), a key that stands twice in an object,
    a number that cannot be held, and values nested more than 100 deep.
    """
    try:
        value = json.loads(
            text, parse_int=_whole, parse_float=_finite, parse_constant=_constant, object_pairs_hook=_object
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"{error.msg.removesuffix(' at')} at {line}column {error.colno}") from None
    except RecursionError:
        raise ValueError(f"nested more than {_DEEPEST} deep") from None
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} deep")
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return value


def dump(data: Any, ascii_only: bool = False) -> str:
    """JSON of plain data on one line. Numbers that JSON does not have become null; half characters are escaped."""
    try:
        text = json.dumps(data, ensure_ascii=ascii_only, allow_nan=False)
    except ValueError:
        return dump(_finite_only(data), ascii_only)
    try:
        text.encode()
    except UnicodeEncodeError:
        return dump(data, ascii_only=True)
    return text


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"a number of {len(text):,} digits") from None


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} stands there twice")
    return made


def _finite_only(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite_only(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite_only(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
