"""Answers of a given form: grammars, JSON schemas, tool calls and bounds on thinking, as constraints on what may follow.

    constraint = GrammarConstraint(llm.assembly.tokenizer, json_schema({"type": "object"}))
    llm.generate("...", constraint=constraint)

A constraint (core.transcript.Constraint) is a function of the text before a token, so it holds for drafted tokens as for
any other, and drafters see what the target sees. The grammars are llguidance's.
"""

from __future__ import annotations

from importlib.util import find_spec

from forerun.errors import UsageError

if find_spec("llguidance") is None:
    raise UsageError(
        "structured output needs the package llguidance, which is missing; pip install 'forerun[structured]'."
    )

from forerun.structured.constraint import GrammarConstraint
from forerun.structured.grammars import Grammar, choice, grammar, json_object, json_schema, regex
from forerun.structured.thinking import AfterThinking, TokenBudget
from forerun.structured.together import all_of
from forerun.structured.tools import tool_grammar

__all__ = [
    "AfterThinking",
    "Grammar",
    "GrammarConstraint",
    "TokenBudget",
    "all_of",
    "choice",
    "grammar",
    "json_object",
    "json_schema",
    "regex",
    "tool_grammar",
]
