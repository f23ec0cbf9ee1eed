"""Grammars for tool calls in the model's own syntax: free text between calls, or calls and nothing else.

Arguments match their tool's schema. In XML syntax a string is any text without </parameter>; of its schema `enum`, `const`
are kept, since the others (pattern, lengths, format) speak of the string and not of the text around it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from forerun.errors import UsageError, quoted
from forerun.structured.grammars import Grammar, inline, literal
from forerun.structured.vocabulary import Vocabulary
from forerun.text.argument_types import types_of
from forerun.text.qwen_xml import END_FUNCTION, END_PARAMETER, FUNCTION, PARAMETER
from forerun.text.tools import CLOSE, OPEN, Syntax, Tool
from forerun.tokenizers.tokenizer import Tokenizer

_ANYTHING: Final = "/(.|\\n)*/"
# Schemas whose contents are data, in which a "$ref" is no reference.
_DATA: Final = frozenset({"const", "enum", "default", "examples"})


def tool_grammar(
    tokenizer: Tokenizer,
    tools: Sequence[Tool],
    syntax: Syntax,
    *,
    choice: Literal["auto", "required"] = "auto",
    name: str | None = None,
    parallel: bool = True,
) -> Grammar:
    """What an answer with tools may be.

    choice: `required` is one call or more and no other text; `auto` is any text, with calls in it that are calls of these
        tools: whatever follows <tool_call> is one. There only the arguments of strict tools must match their schema.
    name: the one tool that must be called. parallel: whether there may be more than one call.
    Raises UsageError for a name that no tool has, and for no tools. Schemas are looked at where the grammar is first used.
    """
    if not tools:
        raise UsageError("there are no tools to call; give at least one, or leave tool_choice out.")
    if name is not None:
        tools = [tool for tool in tools if tool.name == name]
        choice = "required"
        if not tools:
            raise UsageError(f"tool_choice names {quoted(name)}, which is none of the tools; name one of them.")
    write = _xml if syntax == "qwen_xml" else _json
    rules = [write(f"tool{i}", tool, choice == "required" or tool.strict) for i, tool in enumerate(tools)]
    vocabulary = Vocabulary.of(tokenizer)
    body = f'"\\n" ({" | ".join(f"tool{i}" for i in range(len(rules)))}) "\\n" {_tag(vocabulary, CLOSE)}'
    opening = vocabulary.control_id(OPEN)
    if choice == "required":
        start = f"start: call{' (' + literal(chr(10)) + ' call)*' if parallel else ''}\ncall: {_tag(vocabulary, OPEN)} {body}"
    elif opening is not None:
        start = f"start: (text call){'*' if parallel else '?'} {'text' if parallel else '| text'}"
        start += f"\ncall: <[{opening}]> {body}\ntext: {_ANYTHING}"
    else:
        # Lazy: the text before a call ends with the first opening tag, from where on there is nothing but a call.
        start = f"start: call{'* text' if parallel else ' | text'}\ncall: until_call {body}\ntext: {_ANYTHING}"
        start += f"\nuntil_call[lazy]: /(.|\\n)*{OPEN}/"
    return Grammar("\n".join([start, *rules]), "tools' grammar")


def _tag(vocabulary: Vocabulary, tag: str) -> str:
    """A tag as a part of Lark: as text, or as the control token that it is in this vocabulary."""
    token = vocabulary.control_id(tag)
    return literal(tag) if token is None else f"<[{token}]>"


def _json(rule: str, tool: Tool, strict: bool) -> str:
    arguments: Mapping[str, Any] = {"type": "object"}
    if strict:
        arguments = arguments | _moved(tool.parameters, "#/properties/arguments")
    call = {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
    return f"{rule}: {inline(call)}"


def _moved(schema: Any, place: str) -> Any:
    """A schema as a part of another, at `place` in it: references to its own parts lead there."""
    if isinstance(schema, Mapping):
        moved = {key: value if key in _DATA else _moved(value, place) for key, value in schema.items()}
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            moved["$ref"] = place + reference[1:]
        return moved
    return [_moved(item, place) for item in schema] if isinstance(schema, list) else schema


def _xml(rule: str, tool: Tool, strict: bool) -> str:
    required = tool.parameters.get("required")
    needed = set(required) if isinstance(required, list) else set()
    rules, parts = [], []
    for i, key in enumerate(tool.properties if strict else ()):
        rules.append(_parameter(f"{rule}_{i}", key, tool))
        parts.append(f"{rule}_{i}" if key in needed else f"{rule}_{i}?")
    if not parts and (not strict or not tool.properties) and tool.parameters.get("additionalProperties") is not False:
        parts.append(f"{rule}_any*")
        rules.append(
            f'{rule}_any: {literal(PARAMETER)} /[^<>\\n]+/ ">\\n" {rule}_value "\\n"\n{_text(f"{rule}_value")}'
        )
    opening = literal(f"{FUNCTION}{tool.name}>\n")
    return "\n".join([f"{rule}: {opening} {' '.join(parts)} {literal(END_FUNCTION)}", *rules])


def _parameter(rule: str, key: str, tool: Tool) -> str:
    """The rule for one argument and its tags."""
    if any(char in "<>\n" for char in key):
        raise UsageError(f"the tool {quoted(tool.name)} has a parameter {quoted(key)}; leave <, > and line ends out.")
    schema = tool.properties[key]
    opening, closing = literal(f"{PARAMETER}{key}>\n"), literal(f"\n{END_PARAMETER}\n")
    if types_of(tool, key) == {"string"} and isinstance(schema, Mapping):
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
            return f"{rule}: {opening} ({' | '.join(map(literal, values))}) {closing}"
    if "string" in types_of(tool, key):
        return f'{rule}: {opening} {rule}_value "\\n"\n{_text(f"{rule}_value")}'
    if "$ref" in json.dumps(schema):
        # References are to parts of the tool's whole schema.
        pointer = key.replace("~", "~0").replace("/", "~1")
        schema = {
            "$ref": f"#/$defs/tool/properties/{pointer}",
            "$defs": {"tool": _moved(tool.parameters, "#/$defs/tool")},
        }
    return f"{rule}: {opening} {inline(schema)} {closing}"


def _text(rule: str) -> str:
    """The rule for a string's text and the closing tag behind it."""
    return f"{rule}[lazy]: /(.|\\n)*{END_PARAMETER.replace('/', chr(92) + '/')}/"
