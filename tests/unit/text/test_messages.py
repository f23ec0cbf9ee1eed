"""Messages become what every template can read, and what none can is named."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.errors import PromptError
from forerun.text.messages import in_known_roles, normalized

USER = {"role": "user", "content": "hi"}


def roles(*given: str, mentioned: frozenset[str] = frozenset()) -> list[str]:
    return [m["role"] for m in in_known_roles([{"role": role, "content": "x"} for role in given], mentioned)]


@pytest.mark.parametrize("content", [None, "", ..., []])
def test_content_may_be_missing(content: Any) -> None:
    message = {"role": "user"} if content is ... else {"role": "user", "content": content}
    assert normalized([message]) == [{"role": "user", "content": ""}]


def test_content_may_be_parts() -> None:
    parts = [{"type": "text", "text": "one"}, {"text": "two"}, "three"]
    assert normalized([{"role": "user", "content": parts}]) == [{"role": "user", "content": "one\ntwo\nthree"}]
    with pytest.raises(PromptError, match="message 0 has a part of type 'image_url': only text"):
        normalized([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


def test_arguments_of_tool_calls_may_be_json_in_a_string() -> None:
    def call(arguments: Any) -> list[dict[str, Any]]:
        calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]
        return [{"role": "assistant", "content": "", "tool_calls": calls}]

    assert normalized(call('{"a": "é", "b": [1]}')) == call({"a": "é", "b": [1]})
    for same in ({"a": 1}, "not json", "[1]", "[" * 100_000):
        assert normalized(call(same)) == call(same)
    assert normalized([USER | {"tool_calls": None}]) == [USER]
    original = call('{"a": 1}')
    normalized(original)
    assert original == call('{"a": 1}')


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "empty"),
        (["hi"], "message 0 has no role"),
        ([{"content": "x"}], "message 0 has no role"),
        ([USER, {"role": "user", "content": 7}], "message 1 has content"),
        ([{"role": "user", "content": [7]}], "part of type 'int'"),
        ([{"role": "assistant", "tool_calls": "x"}], "tool_calls"),
    ],
)
def test_malformed_messages_are_named(messages: list[Any], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        normalized(messages)


def test_developers_are_the_system_where_a_template_does_not_know_them() -> None:
    assert roles("developer", "user") == ["system", "user"]
    assert roles("developer", mentioned=frozenset({"developer"})) == ["developer"]


def test_a_role_may_be_the_templates_own() -> None:
    assert roles("system", "user", "assistant", "tool") == ["system", "user", "assistant", "tool"]
    assert roles("ipython", "observation", mentioned=frozenset({"ipython", "observation"})) == [
        "ipython",
        "observation",
    ]


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("User", r"message 1 has the role 'User'; known: system, user, assistant, tool\. Did you mean user\?$"),
        ("ASSISTANT", r"Did you mean assistant\?$"),
        ("asistant", r"Did you mean assistant\?$"),
        ("narrator", r"'narrator'; known: system, user, assistant, tool\.$"),
        ("ipython", r"'ipython'; known: system, user, assistant, tool\.$"),
        ("", r"the role ''; known"),
    ],
)
def test_other_roles_are_refused(role: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        roles("user", role)


def test_roles_that_this_template_knows_are_listed() -> None:
    with pytest.raises(PromptError, match=r"known: system, user, assistant, tool, function, ipython\."):
        roles("narrator", mentioned=frozenset({"ipython", "function", "content"}))
