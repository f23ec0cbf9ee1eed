"""The calls in a model's text: which way it writes them, and parsers for each way."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.text.hermes import HermesParser
from forerun.text.qwen_xml import FUNCTION, QwenXmlParser
from forerun.text.tools import OPEN, Parsed, Syntax, Tool, ToolCallParser, folded


def syntax_of(template: str | None) -> Syntax | None:
    """How a model with this chat template writes its calls; None where the template knows of none, or of another way."""
    if template is None or OPEN not in template:
        return None
    return "qwen_xml" if FUNCTION in template else "hermes"


def parser_for(syntax: Syntax, tools: Sequence[Tool] = (), request_id: str = "") -> ToolCallParser:
    """A parser for one text.

    tools: their schemas say what type an argument has. request_id: what the calls' ids follow from.
    """
    return QwenXmlParser(tools, request_id) if syntax == "qwen_xml" else HermesParser(request_id)


def parse_all(text: str, syntax: Syntax, tools: Sequence[Tool] = (), request_id: str = "") -> Parsed:
    """A whole text taken apart: the sum of what its parser says."""
    parser = parser_for(syntax, tools, request_id)
    return folded([*parser.push(text), *parser.finish()])
