"""How parent and child talk: eight bytes of length, then so many bytes of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from typing import IO, Any

_SIZE = 8


def encoded(value: Any) -> bytes:
    """JSON of plain data; mappings, sequences and sets of other kinds become objects and arrays.

    Raises TypeError, which says what there is that is not plain data.
    """
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError) as error:
        raise TypeError("an object inside itself, or too many inside each other") from error


def decoded(payload: bytes) -> Any:
    """The value again."""
    return json.loads(payload.decode("utf-8", "surrogatepass"))


def send(stream: IO[bytes], payload: bytes) -> None:
    """Write a frame. Raises OSError where nobody reads."""
    stream.write(len(payload).to_bytes(_SIZE, "little"))
    stream.write(payload)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """Read a frame; None where the other side has gone, also in the middle of one."""
    head = stream.read(_SIZE)
    if len(head) < _SIZE:
        return None
    size = int.from_bytes(head, "little")
    payload = stream.read(size)
    return payload if len(payload) == size else None


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray | memoryview):
        return list(value)
    raise TypeError(f"a value of type {type(value).__name__}")
