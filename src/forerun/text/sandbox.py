"""The sandbox that chat templates run in.

Templates come from model files and are not trusted: they run in Jinja's immutable sandbox, without loaders, and products
that could fill the memory are refused. What they may rely on is what transformers offers them: trim_blocks and
lstrip_blocks, loop controls, `raise_exception`, `strftime_now`, `tojson` with arguments, the `generation` block.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forerun.errors import ModelFileError, PromptError

LONGEST: Final = 1_000_000
MOST_BITS: Final = 4096


class Sandboxed:
    """A compiled template. Raises ModelFileError where it is not valid Jinja."""

    def __init__(self, source: str) -> None:
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelFileError(
                f"the model's chat template is not valid ({error}): ask without it (raw), or use another model"
            ) from error

    def render(self, variables: dict[str, Any]) -> str:
        """The template's text. Raises PromptError where it refuses or fails, ModelFileError where it breaks out."""
        try:
            return self._template.render(variables)
        except _RefusedError as error:
            raise PromptError(f"the model's chat template refuses this conversation: {error}") from error
        except SecurityError as error:
            raise ModelFileError(
                f"the model's chat template does what a template must not ({error}): ask without it (raw)"
            ) from error
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise PromptError(
                f"the model's chat template cannot render this conversation ({error}): ask without it (raw)"
            ) from error


class _RefusedError(jinja2.TemplateError):
    """A template called `raise_exception`."""


def _refuse(message: object) -> None:
    raise _RefusedError(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: unlike Jinja's own filter, nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with products that could fill the memory refused as well."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if _too_large(operator, left, right):
            raise SecurityError("a product too large")
        return super().call_binop(context, operator, left, right)


def _too_large(operator: str, left: Any, right: Any) -> bool:
    whole = [side for side in (left, right) if isinstance(side, int)]
    if len(whole) == 2:
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        return bool(bits > MOST_BITS)
    sized = [side for side in (left, right) if isinstance(side, str | bytes | list | tuple)]
    return len(whole) == len(sized) == 1 and len(sized[0]) * whole[0] > LONGEST


class _GenerationBlock(Extension):
    """`{% generation %}`, by which templates mark the assistant's words for training; here it only holds them."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))
