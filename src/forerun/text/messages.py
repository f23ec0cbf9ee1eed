"""Messages of a conversation as every template can read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from forerun.errors import PromptError, meant

Message = Mapping[str, Any]
ROLES: Final = ("system", "user", "assistant", "tool")
_OF_SOME_TEMPLATES: Final = ("developer", "function", "ipython")
_TEXT_PARTS: Final = ("text", "input_text", "output_text")


def in_known_roles(messages: list[dict[str, Any]], mentioned: frozenset[str]) -> list[dict[str, Any]]:
    """The messages, `developer` called `system` where a template does not tell them apart.

    mentioned: the strings in the template; a role of its own is one of them. Raises PromptError for any other role:
    templates take it for nothing, and lose the message, or for one more heading, which no model was trained on.
    """
    known = (*ROLES, *(role for role in _OF_SOME_TEMPLATES if role in mentioned))
    for i, message in enumerate(messages):
        role = message["role"]
        if role not in known and role not in mentioned and role != "developer":
            raise PromptError(f"message {i} has the role {role!r}; known: {', '.join(known)}.{meant(role, known)}")
    if "developer" in mentioned:
        return messages
    return [message | {"role": "system"} if message["role"] == "developer" else message for message in messages]


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
