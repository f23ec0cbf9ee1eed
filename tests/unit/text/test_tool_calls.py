"""Tool calls in both syntaxes: the same whatever pieces the text comes in, nothing lost, arguments that are JSON."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import PromptError
from forerun.text.argument_types import as_json, types_of
from forerun.text.json_scan import Scan, ValueScanner
from forerun.text.tool_calls import parse_all, parser_for, syntax_of
from forerun.text.tools import (
    Arguments,
    CallEnd,
    CallStart,
    Content,
    Event,
    Parsed,
    Syntax,
    Tool,
    call_id,
    folded,
    joined,
    tools_of,
)

TOOLS = (
    Tool(
        "write",
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "lines": {"type": "integer"},
                "share": {"type": "number"},
                "force": {"type": "boolean"},
                "options": {"type": ["object", "null"]},
                "tags": {"type": "array"},
                "mode": {"enum": ["a", "b"]},
                "note": {"type": ["string", "null"]},
                "level": {"$ref": "#/$defs/level"},
            },
            "$defs": {"level": {"anyOf": [{"type": "integer"}, {"const": None}]}},
        },
    ),
)

# name: syntax, text, content, (name, arguments) of each call.
CASES: dict[str, tuple[Syntax, str, str, list[tuple[str, Any]]]] = {
    "plain text": ("hermes", "No call <tool, no \n<tool_call here.\n ", "No call <tool, no \n<tool_call here.\n ", []),
    "one": ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", [("f", {"a": 1})]),
    "content around": (
        "hermes",
        'Let me see.\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\nDone. \n',
        "Let me see.\nDone. \n",
        [("f", {})],
    ),
    "content behind": (
        "hermes",
        ' <tool_call>{"name": "f", "arguments": {}}</tool_call>\n\n Done.\n',
        "Done.\n",
        [("f", {})],
    ),
    "two, unicode, braces, escapes": (
        "hermes",
        '<tool_call>\n{"name": "größe", "arguments": {"q": "}{ \\" \\\\ \\u00e9 😀 </tool_call>", "n": [[{}], -1.5e-3]}}\n'
        '</tool_call>\n<tool_call>\n{"arguments": {"x": null, "y": true}, "name": "g"}\n</tool_call>\n',
        "",
        [("größe", {"q": '}{ " \\ é 😀 </tool_call>', "n": [[{}], -0.0015]}), ("g", {"x": None, "y": True})],
    ),
    "no arguments": ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", {})]),
    "null arguments": ("hermes", '<tool_call>{"name": "f", "arguments": null }</tool_call>', "", [("f", {})]),
    "arguments in a string": (
        "hermes",
        '<tool_call>{"arguments": "{\\"a\\": [1]}", "name": "f"}</tool_call>',
        "",
        [("f", {"a": [1]})],
    ),
    "more keys": (
        "hermes",
        '<tool_call>{"id": 12, "name": "f", "x": [1, "}"], "arguments": {"a": 1}, "y": false}</tool_call>',
        "",
        [("f", {"a": 1})],
    ),
    "closing tag missing": ("hermes", '<tool_call>{"name": "f", "arguments": {}}\n</tool', "", [("f", {})]),
    "a brace too many": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {}}}\n</tool_call>',
        "}\n</tool_call>",
        [("f", {})],
    ),
    "truncated": (
        "hermes",
        'Hi\n<tool_call>\n{"name": "f", "arguments": {"a": "b',
        'Hi\n<tool_call>\n{"name": "f", "arguments": {"a": "b',
        [],
    ),
    "truncated before the name": ("hermes", '<tool_call>\n{"na', '<tool_call>\n{"na', []),
    "malformed, then a call": (
        "hermes",
        '<tool_call>\nprint(1)\n</tool_call>\n<tool_call>{"name": "f"}</tool_call>',
        "<tool_call>\nprint(1)\n</tool_call>",
        [("f", {})],
    ),
    "an opening tag too many": (
        "hermes",
        '<tool_call>\n<tool_call>{"name": "f"}</tool_call>',
        "<tool_call>\n",
        [("f", {})],
    ),
    "a string that is not closed": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "b}}\n</tool_call><tool_call>{"name": "g"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "b}}\n</tool_call>',
        [("g", {})],
    ),
    "no object": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        [],
    ),
    "not JSON": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": nan}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": nan}}</tool_call>',
        [],
    ),
    "no name": ("hermes", '<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
    "xml": (
        "qwen_xml",
        "I write.\n<tool_call>\n<function=write>\n<parameter=path>\nä/b\n</parameter>\n<parameter=lines>\n12\n</parameter>\n"
        "</function>\n</tool_call>",
        "I write.",
        [("write", {"path": "ä/b", "lines": 12})],
    ),
    "xml, every type": (
        "qwen_xml",
        "<tool_call>\n<function=write>\n<parameter=path>\n12\n</parameter>\n<parameter=share>\n1.50\n</parameter>\n"
        "<parameter=force>\nTrue\n</parameter>\n<parameter=options>\n{'a': [None]}\n</parameter>\n<parameter=tags>\n"
        '[1, "x"]\n</parameter>\n<parameter=mode>\nb\n</parameter>\n<parameter=note>\nnull\n</parameter>\n'
        "<parameter=level>\n3\n</parameter>\n<parameter=unknown>\n1\n</parameter>\n</function>\n</tool_call>",
        "",
        [
            (
                "write",
                {
                    "path": "12",
                    "share": 1.5,
                    "force": True,
                    "options": {"a": [None]},
                    "tags": [1, "x"],
                    "mode": "b",
                    "note": None,
                    "level": 3,
                    "unknown": "1",
                },
            )
        ],
    ),
    "xml, what is not of its type is a string": (
        "qwen_xml",
        "<tool_call><function=write><parameter=lines>many</parameter><parameter=force>\n\n</parameter></function></tool_call>",
        "",
        [("write", {"lines": "many", "force": ""})],
    ),
    "xml, strings as they are": (
        "qwen_xml",
        '<tool_call>\n<function=write>\n<parameter=path>\n\n "q" \\n\n\n<b>\n</para\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=other>\n<parameter=x>\n\n</parameter>\n</function>\n</tool_call>",
        "",
        [("write", {"path": '\n "q" \\n\n\n<b>\n</para'}), ("other", {"x": ""})],
    ),
    "xml, no arguments, no outer tag": ("qwen_xml", "a <function=f>\n</function>\n b", "a\n b", [("f", {})]),
    "xml, truncated": (
        "qwen_xml",
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n",
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n",
        [],
    ),
    "xml, malformed": (
        "qwen_xml",
        "<tool_call>\n<function=f>\n<param>\n</function><function=g></function>",
        "<tool_call>\n<function=f>\n<param>\n</function>",
        [("g", {})],
    ),
    "xml, no name": ("qwen_xml", "<tool_call>\n<function=>\n", "<tool_call>\n<function=>\n", []),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Syntax, str, str, list[tuple[str, Any]]]:
    return CASES[request.param]


def events_of(syntax: Syntax, pieces: list[str]) -> list[Event]:
    parser = parser_for(syntax, TOOLS, "r")
    return joined([*(event for piece in pieces for event in parser.push(piece)), *parser.finish()])


def test_what_is_parsed(case: tuple[Syntax, str, str, list[tuple[str, Any]]]) -> None:
    syntax, text, content, calls = case
    parsed = parse_all(text, syntax, TOOLS, "r")
    assert parsed.content == content
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == calls


@pytest.mark.parametrize("size", range(1, 17))
def test_runs_of_any_length_parse_the_same(case: tuple[Syntax, str, str, list[tuple[str, Any]]], size: int) -> None:
    syntax, text, _, _ = case
    whole = events_of(syntax, [text])
    assert events_of(syntax, [text[start : start + size] for start in range(0, len(text), size)]) == whole
    assert folded(whole) == parse_all(text, syntax, TOOLS, "r")


@given(st.sampled_from(sorted(CASES)), st.integers(0, 2**32))
def test_random_splits_parse_the_same(name: str, seed: int) -> None:
    syntax, text, _, _ = CASES[name]
    rng = random.Random(seed)
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(12)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert events_of(syntax, pieces) == events_of(syntax, [text])


SOUP = [
    "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>", "\n", " ", "{", "}", '"',
    '"name"', ":", '"f"', ",", '"arguments"', "1", "x", "\\", "<", "é",
]  # fmt: skip


@given(st.sampled_from(["hermes", "qwen_xml"]), st.lists(st.sampled_from(SOUP), max_size=40), st.randoms())
def test_nothing_is_lost_whatever_comes(syntax: Syntax, parts: list[str], rng: random.Random) -> None:
    text = "".join(parts)
    pieces = [text[i : i + 3] for i in range(0, len(text), 3)]
    events = events_of(syntax, pieces)
    assert events == events_of(syntax, parts)
    written = "".join(
        event.text if isinstance(event, Content) else event.raw if isinstance(event, CallEnd) else ""
        for event in events
    )
    assert "".join(written.split()) in "".join(text.split()) + "</tool_call>"
    kept = "".join(written.split())
    assert len("".join(text.split())) - len(kept) <= len("</tool_call>"), "only a closing tag cut short is left out"
    started = [event for event in events if isinstance(event, CallStart)]
    ended = [event for event in events if isinstance(event, CallEnd)]
    assert [event.index for event in started] == [event.index for event in ended] == list(range(len(started)))
    for call in folded(events).calls:
        assert isinstance(json.loads(call.arguments), dict)


def test_arguments_stream_as_they_are_written() -> None:
    parser = parser_for("hermes", request_id="r")
    assert parser.push('<tool_call>\n{"name": "f", "arguments": {"a": "') == [
        CallStart(0, call_id("r", 0), "f"),
        Arguments(0, '{"a": "'),
    ]
    assert parser.push("x y") == [Arguments(0, "x y")]
    end = parser.push('"}}\n</tool_call>')
    assert end[0] == Arguments(0, '"}')
    assert isinstance(end[1], CallEnd)
    assert end[1].complete


def test_strings_in_xml_stream_as_they_are_written() -> None:
    parser = parser_for("qwen_xml", TOOLS, "r")
    parser.push("<tool_call>\n<function=write>\n<parameter=path>\n")
    assert parser.push('one\n"') == [Arguments(0, 'one\\n\\"')]
    assert parser.push("\n</param") == []
    assert parser.push("eter>\n</function>") == [Arguments(0, '"}')]


def test_a_call_that_breaks_goes_on_as_content() -> None:
    events = events_of("hermes", ['<tool_call>{"name": "f", "arguments": {"a": ?} rest'])
    assert [type(event) for event in events] == [CallStart, Arguments, CallEnd, Content]
    assert events[1:] == [
        Arguments(0, '{"a": '),
        CallEnd(0, False, '<tool_call>{"name": "f", "arguments": {"a": '),
        Content("?} rest"),
    ]
    assert folded(events) == Parsed('<tool_call>{"name": "f", "arguments": {"a": ?} rest')


def test_ids_follow_from_the_request() -> None:
    ids = {call_id(request, index) for request in ("a", "b") for index in range(3)}
    assert len(ids) == 6
    assert call_id("a", 0) == call_id("a", 0)
    assert all(len(name) == 29 and name.startswith("call_") and name[5:].isalnum() for name in ids)


def test_the_syntax_shows_in_the_template() -> None:
    assert syntax_of(None) is None
    assert syntax_of("{{ messages }}") is None
    assert syntax_of('...<tool_call>\n{"name": <function-name>...') == "hermes"
    assert syntax_of("<tool_call>\n<function=example>\n<parameter=p>") == "qwen_xml"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([{"type": "function"}], "tool 0 has no name"),
        ([{"function": {"name": ""}}], "tool 0 has no name"),
        ([{"function": {"name": "a<"}}], "leave <, > and line ends out"),
        ([{"function": {"name": "a", "parameters": 3}}], "no object"),
        ([{"function": {"name": "a"}}] * 2, "two tools"),
    ],
)
def test_malformed_tools(given: Any, words: str) -> None:
    with pytest.raises(PromptError, match=words):
        tools_of(given)


def test_tools_of_a_request() -> None:
    given = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
    assert tools_of([given]) == (Tool("f", {"type": "object"}, True),)


def test_types_and_values() -> None:
    assert types_of(None, "x") == {"string"}
    assert types_of(TOOLS[0], "level") == {"integer", "null"}
    assert types_of(Tool("f", {"properties": {"x": {"$ref": "#/properties/x"}}}), "x") == {"string"}
    assert as_json(" 7 ", frozenset({"integer"})) == "7"
    assert as_json("7.5", frozenset({"integer"})) == '"7.5"'
    assert as_json("NaN", frozenset({"number"})) == '"NaN"'
    assert as_json("true", frozenset({"integer", "boolean"})) == "true"
    assert as_json("None", frozenset({"integer", "null"})) == "null"


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSONS, st.booleans())
def test_the_scanner_finds_where_a_value_ends(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    scanner = ValueScanner()
    scans = [scanner.take(char) for char in text]
    contained = isinstance(value, str | list | dict)
    assert scans == [Scan.MORE] * (len(text) - 1) + [Scan.LAST if contained else Scan.MORE]
    assert scanner.text == text
    if not contained:
        assert scanner.take(",") is Scan.PAST


@given(st.dictionaries(st.text(), JSONS, max_size=4), st.booleans())
def test_any_arguments_come_through(arguments: dict[str, Any], ascii_only: bool) -> None:
    written = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=ascii_only)
    [call] = parse_all(f"<tool_call>\n{written}\n</tool_call>", "hermes").calls
    assert json.loads(call.arguments) == arguments


@given(st.text())
def test_any_string_comes_through_xml(value: str) -> None:
    text = f"<tool_call>\n<function=write>\n<parameter=path>\n{value}\n</parameter>\n</function>\n</tool_call>"
    [call] = parse_all(text, "qwen_xml", TOOLS).calls
    assert json.loads(call.arguments) == {"path": value}
