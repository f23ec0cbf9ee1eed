"""Shows one answer while it is being written, and survives Ctrl-C."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from forerun.cli.output import Output

if TYPE_CHECKING:
    from forerun.completion import Completion
    from forerun.llm import Stream


def show(stream: Stream, out: Output | None) -> Completion:
    """Run a stream to its end, or to Ctrl-C (finish reason `abort`), and give what there is.

    out: where the text appears as it is made, followed by a line end; None to wait in silence.
    """
    shown = 0
    with closing(stream):
        try:
            for chunk in stream:
                if out is not None:
                    for piece, accepted in zip(chunk.pieces, chunk.accepted, strict=True):
                        out.piece(piece, accepted)
                        shown += len(piece)
        except KeyboardInterrupt:
            pass
        completion = stream.completion
    if out is not None:
        out.piece(completion.text[shown:])
        if not completion.text.endswith("\n"):
            out.piece("\n")
    return completion
