"""`forerun cache`: what forerun keeps on disk, and clearing up."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.output import Output, note

if TYPE_CHECKING:
    from forerun.models.storage import Kept

cache = typer.Typer(help="What forerun keeps on disk (below FORERUN_HOME), and clearing up.")
Json = Annotated[bool, typer.Option("--json", help="The same as one JSON object.")]


@cache.command("ls")
def ls(json: Json = False) -> int:
    """List models, unfinished pulls, repacked weights, profiles, heads and memories, with their sizes."""
    from forerun.core.files import default_home
    from forerun.models.progress import megabytes
    from forerun.models.storage import PACKED_LIMIT, contents

    home, kept = default_home(), contents()
    total = sum(each.size for each in kept)
    with Output() as out:
        if json:
            files = [_describe(each) for each in kept]
            out.json({"home": str(home), "total_bytes": total, "packed_limit_bytes": PACKED_LIMIT, "files": files})
            return 0
    if kept:
        _print(kept)
    note(f"{megabytes(total)} in {home}; repacked weights are kept up to {megabytes(PACKED_LIMIT)}")
    return 0


@cache.command("prune")
def prune(
    everything: Annotated[
        bool,
        typer.Option("--all", help="All repacked weights, profiles and heads too; they are made again when needed."),
    ] = False,
    json: Json = False,
) -> int:
    """Remove what serves nothing: unfinished pulls, damaged files, what belongs to models that are gone, and old caches.

    Models and memories stay.
    """
    from forerun.models.progress import megabytes
    from forerun.models.storage import prune as remove

    gone = remove(everything=everything)
    freed = sum(each.size for each in gone)
    if json:
        with Output() as out:
            out.json({"freed_bytes": freed, "files": [_describe(each) for each in gone]})
        return 0
    if gone:
        _print(gone)
    note(f"{megabytes(freed)} freed" if gone else "there was nothing to remove")
    return 0


def _describe(kept: Kept) -> dict[str, Any]:
    return {
        "kind": kept.kind,
        "path": str(kept.path),
        "size_bytes": kept.size,
        "used": datetime.fromtimestamp(kept.used).astimezone().isoformat(timespec="seconds"),
        "state": kept.state,
    }


def _print(kept: list[Kept]) -> None:
    from rich.console import Console
    from rich.table import Table

    from forerun.models.progress import megabytes

    table = Table(box=None, pad_edge=False)
    for column in ("kind", "size", "used", "name", ""):
        table.add_column(column, justify="right" if column == "size" else "left", no_wrap=True)
    for each in kept:
        used = datetime.fromtimestamp(each.used).strftime("%Y-%m-%d")
        table.add_row(each.kind, megabytes(each.size), used, each.path.name, each.state)
    # Into a pipe or a file, a line is never folded.
    Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False).print(table)
