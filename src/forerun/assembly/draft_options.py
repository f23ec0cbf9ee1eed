"""What follows a draft model's name: `model:NAME@w4@head=32k`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from forerun.errors import UsageError


@dataclass(frozen=True)
class DraftOptions:
    """A name, weights of at most so many `bits`, and a head for some tokens only, by size or file."""

    name: str
    bits: Literal["w8", "w4"] | None = None
    head: str | None = None

    @classmethod
    def parse(cls, argument: str) -> DraftOptions:
        """Raises UsageError for an option that is not one; an `@` in the name of a file that is there is a part of it."""
        bits: Literal["w8", "w4"] | None = None
        head: str | None = None
        while "@" in argument and not Path(argument).exists():
            argument, _, option = argument.rpartition("@")
            if option in ("w4", "w8") and bits is None:
                bits = "w4" if option == "w4" else "w8"
            elif option.startswith("head=") and option != "head=" and head is None:
                head = option.removeprefix("head=")
            else:
                raise UsageError(
                    f"{option!r} is no option of a draft model, or is there twice; known: @w4, @w8, @head=SIZE (such as "
                    "32k) and @head=FILE."
                )
        return cls(argument, bits, head)
