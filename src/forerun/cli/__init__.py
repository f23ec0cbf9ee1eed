"""The command line. Kept empty of imports so that starting it is quick and Ctrl-C is clean from the first moment."""

from __future__ import annotations


def main() -> None:
    """Entry point of the `forerun` command; see `forerun.cli.status` for its exit statuses."""
    try:
        from forerun.cli.streams import fill_gaps

        fill_gaps()
        from forerun.cli.guard import run

        status = run()
    except KeyboardInterrupt:
        status = 130
    raise SystemExit(status)


__all__ = ["main"]
