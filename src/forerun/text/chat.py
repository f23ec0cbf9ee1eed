"""Conversations to prompts, by the model's own Jinja template.

The strings of control tokens are tokens where the template writes them. In what users and tools say they stay text: a
message cannot close its own turn.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from forerun.errors import PromptError
from forerun.text.sandbox import Sandboxed
from forerun.tokenizers.tokenizer import Tokenizer

Message = Mapping[str, Any]
_TEXT_PARTS = ("text", "input_text", "output_text")
# The model's own words: templates take them apart by tokens such as </think>.
_OWN = "assistant"


class ChatTemplate:
    """A model's chat template, compiled when it is first used: a broken one is no reason to refuse raw text.

    source: another template than the model's own. Raises PromptError where there is none.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None = None) -> None:
        source = tokenizer.chat_template if source is None else source
        if source is None:
            raise PromptError("the model has no chat template (it is a base model): pass plain text")
        self._tokenizer = tokenizer
        self._source = source
        named = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        self._tokens = {name: "" if i is None else tokenizer.id_to_token(i) for name, i in named.items()}

    @cached_property
    def _template(self) -> Sandboxed:
        return Sandboxed(self._source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for a conversation, as text.

        messages: `role` and `content` (text, null, absent, or an array of text parts), `tool_calls` and the like.
        add_generation_prompt: end with the opening of the assistant's turn.
        variables: whatever else the template knows (`enable_thinking`, ...).
        Raises PromptError for malformed messages and for conversations that the template refuses, ModelFileError where it
        is not valid Jinja.
        """
        given = {
            "documents": None,
            "messages": normalized(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._template.render(self._tokens | given | variables)

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        special: bool = False,
        **variables: Any,
    ) -> list[int]:
        """Token ids of `render`. BOS is there if the template writes it.

        special: read the strings of control tokens as tokens in users' and tools' messages too.
        """
        clean = normalized(messages)
        hidden = _Hidden(self._tokenizer, clean)
        if special or not hidden.found:
            return self._tokenizer.encode(self.render(clean, tools=tools, **variables), special=True, add_bos=False)
        text = self.render(hidden.messages, tools=tools, **variables)
        runs = self._tokenizer.split_control(text)
        ids: list[int] = []
        for i, run in enumerate(runs):
            ids += self._tokenizer.encode(hidden.shown(run), special=i % 2 == 1, add_bos=False)
        return ids


class _Hidden:
    """Messages in which the strings of control tokens are stood in for, so that only the template's own are seen."""

    def __init__(self, tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> None:
        self.found: list[str] = []
        self._tokenizer = tokenizer
        # Text that cannot be guessed from inside a message, and that survives being written as JSON.
        self._mark = hashlib.sha256(repr(messages).encode("utf-8", "replace")).hexdigest()[:24]
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


def prompt_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    template: ChatTemplate | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> list[int]:
    """Token ids of a conversation, up to the opening of the assistant's turn.

    template: the model's own, where it was compiled before. A model without one (a base model) takes a single user
    message as raw text. Raises PromptError for anything else: there is no right way to guess a format.
    """
    if template is not None or tokenizer.chat_template is not None:
        return (template or ChatTemplate(tokenizer)).encode(messages, tools=tools, **variables)
    plain = normalized(messages)
    if len(plain) != 1 or plain[0]["role"] != "user" or tools:
        raise PromptError(
            "the model has no chat template (it is a base model), so it takes one user message and no system prompt, "
            "history or tools: pass a single prompt, or choose an instruction-tuned model"
        )
    return tokenizer.encode(str(plain[0]["content"]), special=bool(variables.get("special")))


def normalized(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as every template can read them: content is a string, tool-call arguments are objects.

    Raises PromptError that names the message.
    """
    if not messages:
        raise PromptError("the conversation is empty: pass at least one message")
    return [_message(message, index) for index, message in enumerate(messages)]


def _message(message: Any, index: int) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise PromptError(f"message {index} has no role: each message is an object with `role` and `content`")
    clean = dict(message) | {"content": _content(message.get("content"), index)}
    calls = message.get("tool_calls")
    if calls is None:
        clean.pop("tool_calls", None)
    elif isinstance(calls, Sequence) and all(isinstance(call, Mapping) for call in calls):
        clean["tool_calls"] = [_tool_call(call) for call in calls]
    else:
        raise PromptError(f"message {index} has tool_calls that are not a list of objects")
    return clean


def _content(content: Any, index: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise PromptError(f"message {index} has content that is neither text nor an array of parts")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type", "text") in _TEXT_PARTS else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise PromptError(f"message {index} has a part of type {kind!r}: only text parts can be read")
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call whose arguments are an object: clients send JSON in a string, templates write JSON of an object."""
    clean = dict(call)
    if isinstance(call.get("function"), Mapping):
        clean["function"] = _tool_call(call["function"])
    if isinstance(call.get("arguments"), str):
        try:
            parsed = json.loads(call["arguments"])
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict):
            clean["arguments"] = parsed
    return clean
