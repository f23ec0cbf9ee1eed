"""`forerun pull`: bring models into the cache."""

from __future__ import annotations

from typing import Annotated

import typer


def pull(names: Annotated[list[str], typer.Argument(help="Names from `forerun models`.", metavar="NAME...")]) -> int:
    """Fetch models into the cache, going on where an interrupted pull stopped. Prints where each one is.

    What is there already is read and compared with its SHA-256, and fetched again where it differs.
    """
    from forerun.cli.output import complain, note
    from forerun.models import TerminalProgress, resolve
    from forerun.models import pull as fetch
    from forerun.models.catalogue import lookup

    progress = TerminalProgress()
    for name in names:
        try:
            # Anything else (a hub id) goes through the same resolution as --model.
            named = lookup(name) is not None
            path = fetch(name, progress) if named else resolve(name, progress)
        except KeyboardInterrupt:
            complain(f"interrupted; what arrived is kept, `forerun pull {name}` goes on from there.")
            return 130
        note(f"{name} is ready" + (", its SHA-256 is the right one" if named else ""))
        typer.echo(path)
    return 0
