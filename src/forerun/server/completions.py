"""The answers of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.core.choosing import TokenLogprob
from forerun.server.running import Event
from forerun.server.schema.completions import CompletionRequest
from forerun.server.writing import Writer, number
from forerun.text.detokenizer import Detokenizer


class TextWriter(Writer):
    kind = chunk_kind = "text_completion"
    prefix = "cmpl"
    body: CompletionRequest

    def piece(self, event: Event) -> dict[str, Any] | None:
        text = _text([event])
        if self.unwritten and event.finish is None:
            text, event = "", Event(event.choice)
        logprobs = _Logprobs(self, self.run.choices[event.choice].shown)
        self._open(event, logprobs)
        text = logprobs.text + text
        if event.logprob is not None:
            logprobs.add(event.logprob, _text([event]))
        self.run.choices[event.choice].shown += len(text)
        wanted = event.finish is not None or event.step is not None or logprobs.tokens
        if not (text or wanted or self.body.return_token_ids):
            return None
        return {
            "index": event.choice,
            "text": text,
            "logprobs": logprobs.told() if logprobs.tokens else None,
            "finish_reason": self._finish(event),
        }

    def whole_choice(self, index: int, events: list[Event]) -> dict[str, Any]:
        if self.unwritten:
            events = [event for event in events if event.finish is not None]
            events = [Event(index, finish=event.finish) for event in events]
        logprobs = _Logprobs(self, 0)
        self._open(events[0], logprobs)
        text = logprobs.text + _text(events)
        for event in events:
            if event.logprob is not None:
                logprobs.add(event.logprob, _text([event]))
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs.told() if self.body.logprobs is not None else None,
            "finish_reason": self._finish(events[-1]),
            **self.ids_of(events),
        }

    def usage(self) -> dict[str, Any]:
        told = super().usage()
        if self.unwritten:
            told |= {"completion_tokens": 0, "total_tokens": told["prompt_tokens"]}
        return told

    @property
    def unwritten(self) -> bool:
        """Whether only the prompt is wanted: the engine writes one token, which nobody sees."""
        return self.body.max_tokens == 0

    def _finish(self, event: Event) -> str | None:
        return "length" if self.unwritten and event.finish == "stop" else event.finish

    def _open(self, event: Event, logprobs: _Logprobs) -> None:
        """With the first event, the prompt."""
        writing = self.run.choices[event.choice]
        if writing.opened or writing.choice.echo is None:
            return
        writing.opened = True
        logprobs.text = writing.choice.echo
        sequence = writing.answer.sequence
        if sequence is not None and sequence.request.prompt_logprobs is not None:
            logprobs.add_prompt(sequence.request.prompt, sequence.prompt_logprobs)


class _Logprobs:
    """The `logprobs` block of a text completion. start: characters of the answer that were shown before."""

    def __init__(self, writer: TextWriter, start: int) -> None:
        self.tokens: list[str] = []
        self.text = ""  # of the prompt, where it is shown
        self._writer = writer
        self._offset = start
        self._logprobs: list[float | None] = []
        self._top: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def add(self, found: TokenLogprob, text: str) -> None:
        """A token, and the text that it showed."""
        text_of = self._writer.text_of
        top = {text_of(token): number(logprob) for token, logprob in found.top}
        top.setdefault(text_of(found.token_id), number(found.logprob))
        self._put(found.token_id, number(found.logprob), top, text)

    def add_prompt(self, prompt: Sequence[int], logprobs: Sequence[TokenLogprob]) -> None:
        """The tokens of the prompt, of which the first has nothing before it."""
        detokenizer = Detokenizer(self._writer.assembly.tokenizer)
        self._put(prompt[0], None, None, detokenizer.push(prompt[0]))
        for found in logprobs:
            self.add(found, detokenizer.push(found.token_id))
        self._offset = len(self.text)

    def told(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._top if self._writer.body.logprobs else None,
            "text_offset": self._offsets,
        }

    def _put(self, token: int, logprob: float | None, top: dict[str, float] | None, text: str) -> None:
        self.tokens.append(self._writer.text_of(token))
        self._logprobs.append(logprob)
        self._top.append(top)
        self._offsets.append(self._offset)
        self._offset += len(text)


def _text(events: Sequence[Event]) -> str:
    return "".join(delta.text for event in events for delta in event.deltas)
