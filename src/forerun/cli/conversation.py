"""A conversation with a model: the messages so far, and how one more is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forerun.cli.activity import Activity
from forerun.cli.output import Output, complain, note
from forerun.core.stats import Stats
from forerun.errors import UsageError

if TYPE_CHECKING:
    from forerun.completion import Completion
    from forerun.llm import LLM


class Conversation:
    """Messages so far.

    asked: sampling parameters of the next answer; asked_at_first: before any was changed. messages: without the system
    message. last: the latest answer. stats and seconds: over all answers, decoding only.
    """

    def __init__(self, llm: LLM, system: str | None, asked: dict[str, Any], out: Output, quiet: bool = False) -> None:
        self.llm = llm
        self.system = system
        self.asked = self.asked_at_first = asked
        self.messages: list[dict[str, Any]] = []
        self.last: Completion | None = None
        self.stats = Stats()
        self.answers = 0
        self.seconds = 0.0
        self._out = out
        self._quiet = quiet

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
