"""What llguidance reads: grammars for JSON, regular expressions, choices and grammars of the user's own.

All of them become Lark text. Text that has to follow may be written with any tokens that spell it (`no_forcing`), so
whether a token may follow depends on the bytes before it alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from forerun.errors import UsageError, quoted

# The most characters of a grammar; what it may take to read it and to ask it are LIMITS.
LONGEST: Final = 1_000_000
LIMITS: Final = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # some 20 ms
    step_lexer_fuel=200_000,  # some 15 ms
    step_max_items=50_000,
    max_items_in_row=2_000,
    max_lexer_states=50_000,  # at 1 to 2 kB each
    max_grammar_size=500_000,
    verbose_errors=False,
)
# Between tokens of JSON: enough for deep indentation, and no model can go on with it for ever.
_SPACE: Final = r"[\x20\x0A\x0D\x09]{1,128}"
_SETTINGS: Final = '\n%llguidance {"no_forcing": true}\n'


@dataclass(frozen=True)
class Grammar:
    """A grammar in llguidance's Lark.

    lark: its text. what: what a message calls it.
    """

    lark: str
    what: str = "grammar"

    def matcher(self, words: LLTokenizer) -> LLMatcher:
        """Something that follows one text. Raises UsageError for a grammar that is not valid or too large."""
        if len(self.lark) > LONGEST:
            raise UsageError(
                f"the {self.what} has {len(self.lark)} characters; {LONGEST} are the most: make it smaller."
            )
        # At the end, so that places in the user's text stay where they are, and the last setting is the one that counts.
        text = LLMatcher.grammar_from_lark(self.lark + _SETTINGS)
        matcher = LLMatcher(words, text, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise UsageError(f"the {self.what} cannot be used ({reason(matcher.get_error())}): correct it.")
        return matcher


def reason(message: str) -> str:
    """What a message of llguidance says, without the copies of grammar and state that it carries."""
    message = re.split(r"\n\s*\d+ \| |\n?<state>|\n?<non-verbose/>", message, maxsplit=1)[0]
    message = re.sub(r"^at \d+\(\d+\): failed to compile JSON schema: ", "", message)
    return message.strip().removesuffix(".")


def json_object() -> Grammar:
    """Any JSON object."""
    return Grammar(f"start: {inline({'type': 'object'})}", "JSON object")


def json_schema(schema: Mapping[str, Any] | bool | str) -> Grammar:
    """JSON that matches a schema (draft 2020-12), properties in the schema's order. As a string, it is read as JSON.

    What cannot be enforced is refused where the grammar is first used, not ignored. Raises UsageError for what is no schema.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the JSON schema is not JSON ({error}): correct it.") from error
    if not isinstance(schema, Mapping | bool):
        raise UsageError(f"the JSON schema is {quoted(schema)}; it must be an object.")
    return Grammar(f"start: {inline(schema)}", "JSON schema")


def regex(pattern: str) -> Grammar:
    """Text that matches a regular expression as a whole (Rust's syntax, without look-around). Raises UsageError."""
    if not isinstance(pattern, str) or not pattern:
        raise UsageError(f"the regular expression is {quoted(pattern)}; it must be a string that is not empty.")
    [made] = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"]
    return Grammar(made["lark_grammar"], "regular expression")


def choice(options: Sequence[str]) -> Grammar:
    """One of several strings. Raises UsageError."""
    if isinstance(options, str) or not all(isinstance(option, str) for option in options) or not options:
        raise UsageError(f"the choice is {quoted(options)}; it must be a list of strings, at least one.")
    # A terminal: as alternatives of a rule, thousands would each be followed on their own.
    return Grammar(
        f"start: CHOICE\nCHOICE: {' | '.join(literal(option) for option in dict.fromkeys(options))}", "choice"
    )


def grammar(text: str) -> Grammar:
    """A grammar of the user's own, in llguidance's Lark or llama.cpp's GBNF; which one it is shows. Raises UsageError."""
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"the grammar is {quoted(text)}; it must be Lark or GBNF text that is not empty.")
    if len(text) > LONGEST:
        raise UsageError(f"the grammar has {len(text)} characters; {LONGEST} are the most: make it smaller.")
    try:
        return Grammar(any_to_lark(text))
    except Exception as error:  # the converter raises bare Exceptions
        raise UsageError(f"the grammar cannot be read as GBNF ({error}): correct it.") from error


def literal(text: str) -> str:
    """A text as a Lark string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def inline(schema: Mapping[str, Any] | bool) -> str:
    """A JSON schema as a part of Lark. Raises UsageError for what is not JSON."""
    if not isinstance(schema, bool):
        asked = schema.get("x-guidance")
        schema = {**schema, "x-guidance": {"whitespace_pattern": _SPACE} | (asked if isinstance(asked, dict) else {})}
    try:
        return f"%json {json.dumps(schema, allow_nan=False)}"
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema is not JSON ({error}): correct it.") from error
