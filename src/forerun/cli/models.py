"""`forerun models`: what can be pulled by name, and what is here already."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from forerun.models import Cache, CachedModel, Entry


def models(json: Annotated[bool, typer.Option("--json", help="The same as a JSON list.")] = False) -> int:
    """List the models that have a name, with sizes, licenses, what drafts for what, and what is cached."""
    from forerun.models import CATALOGUE, DEFAULT_MODEL, Cache

    cache = Cache()
    held = {model.entry.name: model for model in cache.contents()}
    rows = [_describe(entry, held.get(entry.name), cache, entry.name == DEFAULT_MODEL) for entry in CATALOGUE]
    if json:
        from json import dumps

        typer.echo(dumps(rows, indent=2))
    else:
        _print(rows)
    return 0


def _describe(entry: Entry, held: CachedModel | None, cache: Cache, default: bool) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "size_bytes": entry.size,
        "license": entry.license,
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
    for column in ("name", "model", "size", "license", "pairs with", "here"):
        table.add_column(column, justify="right" if column == "size" else "left")
    for row in rows:
        here = "yes" if row["cached"] else f"{megabytes(row['partial_bytes'])} of it" if row["partial_bytes"] else "no"
        name = f"{row['name']} (default)" if row["default"] else row["name"]
        pairs = ", ".join(row["pairs_with"]) or "-"
        table.add_row(name, row["title"], megabytes(row["size_bytes"]), row["license"], pairs, here)
    # Into a pipe or a file, a line is never folded.
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)
