"""Shows one answer while it is being written, and survives Ctrl-C."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from forerun.cli.activity import Activity
from forerun.cli.output import Output
from forerun.cli.summary import count

if TYPE_CHECKING:
    from forerun.completion import Chunk, Completion
    from forerun.llm import Stream


def show(stream: Stream, out: Output | None, activity: Activity) -> Completion:
    """Run a stream to its end, or to Ctrl-C (finish reason `abort`), and give what there is.

    out: where the text appears as it is made, followed by a line end; None to wait for the whole. activity: says how far
    the prompt has been read, and how much was written where nobody sees it.
    """
    shown = written = 0
    with closing(stream), activity:
        activity.say("reading the prompt")
        try:
            for chunk in stream:
                written += len(chunk.token_ids)
                if written and out is not None and out.terminal:
                    activity.clear()
                else:
                    activity.say(_progress(chunk, written))
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


def _progress(chunk: Chunk, written: int) -> str:
    if written:
        return f"writing: {count(written, 'token')}"
    return f"reading the prompt: {chunk.prompt_tokens_read:,} of {count(chunk.prompt_tokens, 'token')}"
