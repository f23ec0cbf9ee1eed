"""For the site: docstrings say `name: what it is` of parameters and fields, in running text; here these become a list."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Named(griffe.Extension):
    """Begins an item of a list wherever a docstring comes to speak of one of its object's own names."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """griffe calls this for everything that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = escaped(listed(obj.docstring.value, names_of(obj)))


def names_of(obj: griffe.Object) -> set[str]:
    """Parameters of a function; fields, methods and parameters of a class."""
    if isinstance(obj, griffe.Function):
        return {parameter.name for parameter in obj.parameters}
    if not isinstance(obj, griffe.Class):
        return set()
    functions = [member for member in obj.members.values() if isinstance(member, griffe.Function)]
    return {*obj.members, *(parameter.name for function in functions for parameter in function.parameters)}


def listed(text: str, names: set[str]) -> str:
    """The text with an item for each `name: ...` or `name, other: ...` of these names, and what is raised after them.

    Paragraphs that begin with a space are code and stay as they are.
    """
    if not names:
        return text
    name = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    group = rf"(?:^|(?<=[.;)\]] ))((?:{name})(?:(?:, | and )(?:{name}))*): "
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(" "):
            paragraphs.append(paragraph)
            continue
        first, *items = re.split(group, re.sub(r"\s+", " ", paragraph).strip())
        paragraphs += [first] if first else []
        # What follows the last item, from "Raises" on, is about the whole.
        last, raises, rest = items[-1].partition(" Raises ") if items else ("", "", "")
        items[-1:] = [last] if items else []
        paragraphs += ["\n".join(f"- {_code(items[i])}: {items[i + 1].strip()}" for i in range(0, len(items), 2))]
        paragraphs += [f"{raises.strip()} {rest}"] if raises else []
    return "\n\n".join(filter(None, paragraphs))


def escaped(text: str) -> str:
    """The text with `<` as Markdown wants it outside of code, where it would begin a tag of HTML."""
    code = r"(`[^`]*`|(?:^|(?<=\n\n)) .*?(?=\n\n\S|$))"
    parts = re.split(code, text, flags=re.DOTALL)
    return "".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def _code(names: str) -> str:
    return re.sub(r"\w+(?=, | and |$)", r"`\g<0>`", names)
