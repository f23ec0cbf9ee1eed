"""For the site: the page of all commands and their options, made from the commands themselves each time it is built."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from typer.main import get_command

from forerun.cli.app import app

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

INTRODUCTION = "# Commands\n\nWhat `forerun COMMAND --help` says. [The command line](command-line.md) has more.\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """mkdocs calls this before it reads the pages."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "cli.md", content=page()))
    return files


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join([INTRODUCTION, *(part for name, one in commands(get_command(app)) for part in section(name, one))])


# Commands and parameters are click's, which newer Typers bring along under a name of their own.
def commands(command: Any, name: str = "forerun") -> Iterator[tuple[str, Any]]:
    """Every command with its full name, groups before what is in them."""
    yield name, command
    for sub in getattr(command, "commands", {}).values():
        if not sub.hidden:
            yield from commands(sub, f"{name} {sub.name}")


def section(name: str, command: Any) -> Iterator[str]:
    """Heading, usage, help and table of one command."""
    context = command.context_class(command, info_name=name)
    yield f"## {name}\n"
    yield f"```text\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```\n"
    yield plain(command.help or "") + "\n"
    rows = [row for parameter in command.params if (row := row_of(parameter, context)) is not None]
    if rows:
        yield "| | |\n| --- | --- |\n" + "\n".join(rows) + "\n"


def row_of(parameter: Any, context: Any) -> str | None:
    """Names and help of an option or argument; None for one that is hidden."""
    record = None if parameter.hidden else parameter.get_help_record(context)
    if record is None:
        return None
    names = re.sub(r"list\[(\w+)\]", lambda kind: kind[1].lower(), record[0])
    return f"| `{names}` | {plain(record[1])} |".replace("\n", " ")


def plain(text: str) -> str:
    """Help as Markdown: rich's markup goes, what Markdown or HTML would take for its own is escaped."""
    text = re.sub(r"\[/?(?:bold|dim|italic|cyan|green|yellow|red)\]", "", text)
    return re.sub(r"([|<>*\[\]])", r"\\\1", text)
