"""Typed, range-checked reading of the untrusted key-values of a model file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.errors import ModelFileError

LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Fields:
    """A mapping whose values are checked as they are read. Every method raises ModelFileError that names the key."""

    path: Path
    values: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number between `least` and 2**31 - 1."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            raise self._wrong(key, value, f"a whole number of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
            raise self._wrong(key, value, "a number above zero")
        return float(value)

    def maybe_number(self, key: str) -> float | None:
        """`number`, or None where the key is absent or null."""
        return self.number(key) if self.has(key) else None

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def inner(self, key: str) -> Fields:
        """The mapping under a key; empty where it is absent or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Fields(self.path, value or {})

    def _get(self, key: str, default: object) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelFileError(f"{self.path}: {key} is missing: the file is incomplete, download it again")
        return value

    def _wrong(self, key: str, value: object, wanted: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {key} is {str(value)[:60]!r}, not {wanted}: the file is damaged")
