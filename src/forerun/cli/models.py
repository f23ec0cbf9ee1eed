"""`forerun models`: what can be pulled by name, whose it is, and what is here already."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from forerun.models import Cache, CachedModel, Entry


models = typer.Typer(help="Models that have a name: what can be pulled, what is here, and removing it.")


@models.callback(invoke_without_command=True)
def show(
    command: typer.Context, json: Annotated[bool, typer.Option("--json", help="The same as a JSON list.")] = False
) -> int:
    """List the models that have a name, with sizes, licenses, what drafts for what, and what is cached."""
    from forerun.models import CATALOGUE, DEFAULT_MODEL, Cache

    if command.invoked_subcommand is not None:
        return 0
    cache = Cache()
    held = {model.entry.name: model for model in cache.contents()}
    rows = [_describe(entry, held.get(entry.name), cache, entry.name == DEFAULT_MODEL) for entry in CATALOGUE]
    if json:
        from json import dumps

        typer.echo(dumps(rows, indent=2))
    else:
        _print(rows)
    return 0


@models.command("rm")
def rm(names: Annotated[list[str], typer.Argument(help="Names from `forerun models`.", metavar="NAME...")]) -> int:
    """Delete models from the cache, with what is left of pulls of them, their repacked weights and their profiles."""
    from forerun.cli.output import note
    from forerun.models import TerminalProgress, find, remove
    from forerun.models.progress import megabytes

    for name in [find(name).name for name in names]:
        freed = remove(name, TerminalProgress())
        note(f"{name} is gone; {megabytes(freed)} freed" if freed else f"{name} was not here")
    return 0


def _describe(entry: Entry, held: CachedModel | None, cache: Cache, default: bool) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "size_bytes": entry.size,
        "sha256": entry.sha256,
        "license": entry.license,
        "terms": entry.terms,
        "origin": entry.origin,
        "quantized": entry.quantized,
        "packages": [f"{part.package}=={part.version}" for part in entry.parts],
        "pairs_with": list(entry.pairs_with),
        "drafter": entry.drafter,
        "chat": entry.chat,
        "default": default,
        "cached": held is not None and held.size == entry.size,
        "partial_bytes": 0 if held is None else held.partial_size,
        "path": str(cache.path(entry)),
    }


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from forerun.models.progress import megabytes

    table = Table(box=None, pad_edge=False)
    for column in ("name", "model", "made by", "size", "license", "pairs with", "here"):
        table.add_column(column, justify="right" if column == "size" else "left")
    for row in rows:
        here = "yes" if row["cached"] else f"{megabytes(row['partial_bytes'])} of it" if row["partial_bytes"] else "no"
        name = f"{row['name']} (default)" if row["default"] else row["name"]
        pairs = ", ".join(row["pairs_with"]) or "-"
        maker = row["origin"].partition("/")[0]
        table.add_row(name, row["title"], maker, megabytes(row["size_bytes"]), row["license"], pairs, here)
    # Into a pipe or a file, a line is never folded.
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)
