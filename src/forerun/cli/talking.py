"""What is done with each thing that the user of a chat types, until they leave."""

from __future__ import annotations

from forerun.cli.commands import obey
from forerun.cli.conversation import Conversation
from forerun.cli.lines import Lines
from forerun.cli.output import note

BLOCK = '"""'


def talk(conversation: Conversation, lines: Lines) -> None:
    """Ask, answer, again. Ends at /exit or at the end of input."""
    while True:
        try:
            if not _take(conversation, lines.read(), lines):
                return
        except EOFError:
            return
        except KeyboardInterrupt:
            note("(/exit or Ctrl-D to leave)")


def _take(conversation: Conversation, text: str, lines: Lines) -> bool:
    """Do what was typed; false to leave."""
    if text.startswith("/"):
        return obey(conversation, text)
    if text.startswith(BLOCK):
        text = _block(text.removeprefix(BLOCK), lines)
    if text.strip():
        conversation.answer({"role": "user", "content": text.strip()})
    return True


def _block(text: str, lines: Lines) -> str:
    """The lines up to the one that ends with three quotes, or to the end of input."""
    while not text.rstrip().endswith(BLOCK):
        try:
            text += "\n" + lines.read(more=True)
        except EOFError:
            break
    return text.rstrip().removesuffix(BLOCK)
