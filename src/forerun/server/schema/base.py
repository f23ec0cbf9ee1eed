"""What every body has in common: a field that is not known is an error, and so is a value of another type."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A body, or a part of one. Unknown fields are refused by name; nothing is converted from one type to another."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Told(BaseModel):
    """A part of an answer, for the description only: answers are made as plain data."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)
