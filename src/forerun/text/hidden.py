"""The strings of control tokens in what users and tools say, stood in for while a template is rendered."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from forerun.tokenizers.tokenizer import Tokenizer

# The model's own words: templates take them apart by tokens such as </think>.
_OWN: Final = "assistant"


class Hidden:
    """Messages in which the strings of control tokens are stood in for, so that only the template's own are seen.

    found: the strings, in order.
    """

    def __init__(self, tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> None:
        self.found: list[str] = []
        self._tokenizer = tokenizer
        self._mark = mark_for(messages)
        self.messages = [m if m["role"] == _OWN else self._hide(m) for m in messages]

    def shown(self, text: str) -> str:
        """The text with the strings themselves again."""
        return re.sub(rf"{self._mark}:(\d+):", lambda match: self.found[int(match[1])], text)

    def _hide(self, value: Any) -> Any:
        if isinstance(value, str):
            return "".join(
                self._stand_in(run) if i % 2 else run for i, run in enumerate(self._tokenizer.split_control(value))
            )
        if isinstance(value, Mapping):
            return {key: self._hide(inner) for key, inner in value.items()}
        return [self._hide(inner) for inner in value] if isinstance(value, list) else value

    def _stand_in(self, control: str) -> str:
        self.found.append(control)
        return f"{self._mark}:{len(self.found) - 1}:"


def mark_for(messages: list[dict[str, Any]]) -> str:
    """A word that cannot be guessed from inside a message, and that survives being trimmed and written as JSON."""
    return hashlib.sha256(repr(messages).encode("utf-8", "replace")).hexdigest()[:24]
