"""llama.cpp with several sequences in one batch, as its server schedules them (continuous batching), without HTTP.

Each call decodes one token of every sequence that writes, and as many tokens of new prompts as the batch has room for. A
sequence keeps the start of its prompt that is that of the text before it. Greedy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from forerun.bench.latency import Answer
from forerun.bench.peers import Opened
from forerun.bench.serving import Schedule, Wanted
from forerun.errors import UsageError

# Tokens of a call, and of a pass in it: llama-server's defaults.
_BATCH, _ROWS = 2048, 512


@dataclass
class _Slot:
    """A sequence: the request that it writes, the tokens that its memory holds, and those to be read next."""

    number: int
    request: int | None = None
    sent: float = 0.0
    held: list[int] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


class LlamaCppServing(Opened):
    """A contender (serving.Contender) that writes texts of its own.

    encode: token ids of a request's conversation, so that all contenders read the same. longest: tokens of a prompt.
    """

    compared = False

    def __init__(
        self,
        path: Path,
        encode: Callable[[str], list[int]],
        *,
        threads: int,
        sequences: int,
        longest: int,
        max_tokens: int,
    ) -> None:
        each = -(-(longest + max_tokens) // 256) * 256
        super().__init__(path, threads=threads, context=each * sequences, batch=_BATCH, rows=_ROWS, sequences=sequences)
        self.name = "llama.cpp"
        self._encode, self._most, self._longest = encode, max_tokens, longest
        self._slots = [_Slot(number) for number in range(sequences)]
        self._ends = self._api.llama_vocab_is_eog
        self._words = self._api.llama_model_get_vocab(self._model)

    def run(self, requests: Sequence[Wanted], schedule: Schedule) -> list[Answer]:
        prompts = [self._encode(wanted.prompt) for wanted in requests]
        if max(map(len, prompts)) > self._longest:
            raise UsageError(
                f"a prompt has {max(map(len, prompts))} tokens; llama.cpp was given room for {self._longest}."
            )
        began = time.perf_counter()
        due = [began] * len(requests) if schedule.times is None else [began + at for at in schedule.times]
        most = len(self._slots) if schedule.times is not None else min(schedule.streams, len(self._slots))
        waiting, answers = deque(range(len(requests))), dict[int, Answer]()
        while len(answers) < len(requests):
            now = time.perf_counter()
            for slot in self._slots[:most]:
                if slot.request is None and waiting and due[waiting[0]] <= now:
                    which = waiting.popleft()
                    # In a closed loop a request is sent when there is a client for it.
                    sent = now if schedule.times is None else due[which]
                    self._start(slot, which, prompts[which], sent)
            if all(slot.request is None for slot in self._slots):
                time.sleep(max(0.0, due[waiting[0]] - now))
                continue
            for slot in self._step():
                assert slot.request is not None
                answers[slot.request] = Answer(slot.sent, slot.sent, tuple(slot.times), tuple(slot.written))
                slot.request = None
        return [answers[index] for index in range(len(requests))]

    def _start(self, slot: _Slot, which: int, prompt: list[int], sent: float) -> None:
        """A new text, from where it parts from the one before; its last token is always read."""
        shared = 0
        while shared < min(len(slot.held), len(prompt) - 1) and slot.held[shared] == prompt[shared]:
            shared += 1
        self._api.llama_memory_seq_rm(self._memory, slot.number, shared, -1)
        slot.request, slot.sent = which, sent
        slot.held, slot.unread = prompt[:shared], prompt[shared:]
        slot.written, slot.times = [], []

    def _step(self) -> list[_Slot]:
        """One call; the slots whose texts have ended with it."""
        rows: list[tuple[int, _Slot]] = []
        count = 0
        live = [slot for slot in self._slots if slot.request is not None]
        # Those that write come first: they never wait for a prompt.
        for slot in sorted(live, key=lambda slot: not slot.written):
            taken = slot.unread[: _BATCH - count]
            ends = len(taken) == len(slot.unread)
            for at, token in enumerate(taken, start=1):
                self._put(count, token, len(slot.held), slot.number, ends and at == len(taken))
                slot.held.append(token)
                count += 1
            slot.unread = slot.unread[len(taken) :]
            if ends and taken:
                rows.append((count - 1, slot))
        self._run(count)
        return [slot for row, slot in rows if self._wrote(slot, row)]

    def _wrote(self, slot: _Slot, row: int) -> bool:
        """Append the likeliest token of a row; whether the text ends with it."""
        logits = np.ctypeslib.as_array(self._api.llama_get_logits_ith(self._context, row), (self.vocab,))
        token = int(logits.argmax())
        slot.times.append(time.perf_counter())
        slot.written.append(token)
        slot.unread = [token]
        return self._ends(self._words, token) or len(slot.written) == self._most
