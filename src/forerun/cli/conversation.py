"""A conversation with a model: the messages so far, and what is done with each thing that the user types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forerun.cli.activity import Activity
from forerun.cli.lines import Lines
from forerun.cli.output import Output, complain, note
from forerun.core.stats import Stats
from forerun.errors import UsageError

if TYPE_CHECKING:
    from forerun.completion import Completion
    from forerun.llm import LLM

BLOCK = '"""'


class Conversation:
    """Messages so far, and the loop that adds to them until the user leaves.

    asked: sampling parameters of the next answer; asked_at_first: before any was changed. messages: without the system
    message. last: the latest answer. stats and seconds: over all answers, decoding only.
    """

    def __init__(
        self, llm: LLM, system: str | None, asked: dict[str, Any], out: Output, lines: Lines, quiet: bool = False
    ) -> None:
        self.llm = llm
        self.system = system
        self.asked = self.asked_at_first = asked
        self.messages: list[dict[str, Any]] = []
        self.last: Completion | None = None
        self.stats = Stats()
        self.answers = 0
        self.seconds = 0.0
        self._out = out
        self._lines = lines
        self._quiet = quiet

    def run(self) -> None:
        """Ask, answer, again. Ends at /exit or at the end of input."""
        while True:
            try:
                if not self._take(self._lines.read()):
                    return
            except EOFError:
                return
            except KeyboardInterrupt:
                note("(/exit or Ctrl-D to leave)")

    def _take(self, text: str) -> bool:
        """Do what was typed; false to leave."""
        from forerun.cli.commands import obey

        if text.startswith("/"):
            return obey(self, text)
        if text.startswith(BLOCK):
            text = self._block(text.removeprefix(BLOCK))
        if text.strip():
            self.answer({"role": "user", "content": text.strip()})
        return True

    def _block(self, text: str) -> str:
        """The lines up to the one that ends with three quotes, or to the end of input."""
        while not text.rstrip().endswith(BLOCK):
            try:
                text += "\n" + self._lines.read(more=True)
            except EOFError:
                break
        return text.rstrip().removesuffix(BLOCK)

    def answer(self, message: dict[str, Any]) -> None:
        """One turn. What Ctrl-C left of an answer stays in the conversation; a turn that cannot be read does not."""
        from forerun.cli.showing import show
        from forerun.cli.summary import summarize

        self.messages.append(message)
        try:
            stream = self.llm.stream(self.messages, system=self.system, **self.asked)
        except UsageError as error:
            self.messages.pop()
            complain(f"{error} (/reset starts a new conversation)")
            return
        completion = show(stream, self._out, Activity(self._quiet))
        self.messages.append({"role": "assistant", "content": completion.text})
        self._count(completion)
        if completion.error is not None:
            complain(completion.error)
        elif not self._quiet:
            note(f"({summarize(completion, self.asked.get('max_tokens'))})")

    def _count(self, completion: Completion) -> None:
        self.last = completion
        self.stats.merge(completion.stats)
        self.answers += 1
        self.seconds += completion.timings.decode_s
