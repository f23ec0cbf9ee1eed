"""What a tool's schema says about the types of its arguments, and arguments written as text by it."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any, Final

from forerun.text.json_scan import parsed
from forerun.text.tools import Tool

_STRING: Final = frozenset({"string"})
_TYPE_OF: Final = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}
_CLASSES: Final[Mapping[str, tuple[type, ...]]] = {
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}
_WORDS: Final = {"true": True, "false": False}
# References that are followed at most, one through the other.
_DEEPEST: Final = 16


def types_of(tool: Tool | None, key: str) -> frozenset[str]:
    """JSON types that an argument may have, by the names of JSON schema; `string` where the schema does not say."""
    if tool is None:
        return _STRING
    return frozenset(_types(tool.properties.get(key), tool.parameters, _DEEPEST)) or _STRING


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or not depth:
        return set()
    stated = schema.get("type")
    if isinstance(stated, str):
        return {stated}
    if isinstance(stated, list):
        return {name for name in stated if isinstance(name, str)}
    if "const" in schema:
        return {_TYPE_OF.get(type(schema["const"]), "string")}
    if isinstance(schema.get("enum"), list):
        return {_TYPE_OF.get(type(value), "string") for value in schema["enum"]}
    found: set[str] = set()
    for several in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(several)
        for part in parts if isinstance(parts, list) else ():
            found |= _types(part, root, depth - 1)
    return found | _types(_referred(schema.get("$ref"), root), root, depth - 1)


def _referred(reference: Any, root: Mapping[str, Any]) -> Any:
    """What a reference within the schema means, None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    value: Any = root
    for part in reference[2:].split("/"):
        value = value.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(value, Mapping) else None
    return value


def as_json(text: str, types: frozenset[str]) -> str:
    """An argument written as text, as JSON text of one of the types; a string where it is of none of the others."""
    if "null" in types and text.strip().lower() in ("null", "none"):
        return "null"
    if "string" not in types:
        for name in sorted(types):
            found, value = _read(text.strip(), name)
            if found:
                return json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


def _read(text: str, name: str) -> tuple[bool, Any]:
    """Whether a text is of a type, and the value."""
    if name == "boolean":
        return text.lower() in _WORDS, _WORDS.get(text.lower())
    wanted = _CLASSES.get(name, ())
    for read in (parsed, ast.literal_eval) if name in ("array", "object") else (parsed,):
        try:
            value = read(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        if isinstance(value, wanted) and not isinstance(value, bool):
            return True, value
    return False, None
