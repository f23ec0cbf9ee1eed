"""The answers of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.core.choosing import TokenLogprob
from forerun.server.answers import Delta
from forerun.server.running import Event
from forerun.server.writing import Writer, number


class ChatWriter(Writer):
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def piece(self, event: Event) -> dict[str, Any] | None:
        delta = _merged(event.deltas)
        writing = self.run.choices[event.choice]
        if event.token is not None and not writing.opened:
            writing.opened = True
            delta = {"role": "assistant", "content": "", **delta}
        wanted = event.finish is not None or event.step is not None or event.logprob is not None
        if not (delta or wanted or self.body.return_token_ids):
            return None
        return {
            "index": event.choice,
            "delta": delta,
            "logprobs": None if event.logprob is None else {"content": [self._logprob(event.logprob)]},
            "finish_reason": event.finish,
        }

    def whole_choice(self, index: int, events: list[Event]) -> dict[str, Any]:
        deltas = [delta for event in events for delta in event.deltas]
        logprobs = [self._logprob(event.logprob) for event in events if event.logprob is not None]
        return {
            "index": index,
            "message": _message(deltas),
            "logprobs": {"content": logprobs} if logprobs else None,
            "finish_reason": events[-1].finish,
            **self.ids_of(events),
        }

    def _logprob(self, found: TokenLogprob) -> dict[str, Any]:
        top = [self._token(token, logprob) for token, logprob in found.top]
        return self._token(found.token_id, found.logprob) | {"top_logprobs": top}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        spelled = self.assembly.tokenizer.token_bytes(token)
        return {"token": spelled.decode("utf-8", "replace"), "logprob": number(logprob), "bytes": list(spelled)}


def _merged(deltas: Sequence[Delta]) -> dict[str, Any]:
    """What one token showed, as one delta."""
    merged: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        if delta.kind == "content":
            merged["content"] = merged.get("content", "") + delta.text
        elif delta.kind == "reasoning":
            merged["reasoning_content"] = merged.get("reasoning_content", "") + delta.text
        elif delta.kind == "call":
            function = {"name": delta.name, "arguments": ""}
            calls[delta.call] = {"index": delta.call, "id": delta.id, "type": "function", "function": function}
        else:
            call = calls.setdefault(delta.call, {"index": delta.call, "function": {"arguments": ""}})
            call["function"]["arguments"] += delta.text
    return merged | ({"tool_calls": list(calls.values())} if calls else {})


def _message(deltas: Sequence[Delta]) -> dict[str, Any]:
    """A whole message: what its deltas add up to."""
    merged = _merged(deltas)
    calls = [{key: value for key, value in call.items() if key != "index"} for call in merged.get("tool_calls", ())]
    message = {"role": "assistant", "content": merged.get("content", None if calls else "")}
    if "reasoning_content" in merged:
        message["reasoning_content"] = merged["reasoning_content"]
    return message | ({"tool_calls": calls} if calls else {})
