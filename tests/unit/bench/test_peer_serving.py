"""llama.cpp's sequences are scheduled as its server does: over a library that notes what it is asked."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forerun.bench import peer_serving
from forerun.bench.latency import Answer
from forerun.bench.peer_serving import LlamaCppServing
from forerun.bench.serving import Schedule, Wanted

VOCAB, END = 50, 49


class Library:
    """What is used of llama_cpp. After token t of a text comes t + 1. calls: (position, sequence, token, logits) of each."""

    def __init__(self) -> None:
        self.__version__ = "0"
        self.texts: dict[int, list[int]] = {}
        self.calls: list[list[tuple[int, int, int, int]]] = []
        self.params = SimpleNamespace()

    def __getattr__(self, name: str) -> Any:
        return lambda *given: SimpleNamespace()

    def llama_log_callback(self, function: Any) -> Any:
        return function

    def llama_context_default_params(self) -> Any:
        return self.params

    def llama_vocab_n_tokens(self, vocab: Any) -> int:
        return VOCAB

    def llama_vocab_is_eog(self, vocab: Any, token: int) -> bool:
        return token == END

    def llama_batch_init(self, size: int, embd: int, sequences: int) -> Any:
        def empty() -> list[int]:
            return [0] * size

        ids = [[0] for _ in range(size)]
        return SimpleNamespace(token=empty(), pos=empty(), n_seq_id=empty(), logits=empty(), seq_id=ids, n_tokens=0)

    def llama_memory_seq_rm(self, memory: Any, sequence: int, start: int, end: int) -> None:
        del self.texts.setdefault(sequence, [])[start:]

    def llama_decode(self, context: Any, batch: Any) -> int:
        self.calls.append([])
        for at in range(batch.n_tokens):
            position, sequence, token = batch.pos[at], batch.seq_id[at][0], batch.token[at]
            text = self.texts.setdefault(sequence, [])
            assert position == len(text)
            text.append(token)
            self.calls[-1].append((position, sequence, token, batch.logits[at]))
        return 0

    def llama_get_logits_ith(self, context: Any, row: int) -> Any:
        _, _, token, logits = self.calls[-1][row]
        assert logits
        values = (ctypes.c_float * VOCAB)(*(float(each == token + 1) for each in range(VOCAB)))
        return ctypes.cast(values, ctypes.POINTER(ctypes.c_float))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    monkeypatch.setattr("forerun.bench.peers.llama_cpp", lambda: found)
    return found


def answers(prompts: list[list[int]], schedule: Schedule, *, sequences: int = 2, max_tokens: int = 3) -> list[Answer]:
    serving = LlamaCppServing(
        *(Path("file.gguf"), lambda prompt: prompts[int(prompt)]),
        threads=1,
        sequences=sequences,
        longest=max(map(len, prompts)),
        max_tokens=max_tokens,
    )
    return serving.run([Wanted(str(at), 0) for at in range(len(prompts))], schedule)


def test_each_text_goes_on_from_its_own_prompt(library: Library) -> None:
    found = answers([[1, 2], [10], [20, 21, 22], [46, 47]], Schedule(2))
    assert [answer.token_ids for answer in found] == [(3, 4, 5), (11, 12, 13), (23, 24, 25), (48, END)]
    assert all(len(answer.chunks) == len(answer.token_ids) for answer in found)
    assert all(answer.sent <= answer.chunks[0] <= answer.chunks[-1] for answer in found)
    assert library.params.n_seq_max == 2
    assert library.params.n_ctx == 2 * 256
    assert [[sequence for _, sequence, _, _ in call] for call in library.calls[:2]] == [[0, 0, 1], [0, 1]]


def test_so_many_clients_and_no_more(library: Library) -> None:
    answers([[1], [10], [20]], Schedule(1))
    assert {sequence for call in library.calls for _, sequence, _, _ in call} == {0}
    assert all(len(call) == 1 for call in library.calls)


def test_the_same_start_is_not_read_again(library: Library) -> None:
    found = answers([[1, 2, 3, 4], [1, 2, 7, 8], [1, 2, 7, 8]], Schedule(1), max_tokens=1)
    assert [[position for position, _, _, _ in call] for call in library.calls] == [[0, 1, 2, 3], [2, 3], [3]]
    assert [answer.token_ids for answer in found] == [(5,), (9,), (9,)]


def test_long_prompts_are_read_in_parts_and_hold_up_nobody(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_serving, "_BATCH", 4)
    found = answers([[1], list(range(10, 19))], Schedule(2))
    assert [answer.token_ids for answer in found] == [(2, 3, 4), (19, 20, 21)]
    first = [[sequence for _, sequence, _, _ in call] for call in library.calls[:3]]
    assert first == [[0, 1, 1, 1]] * 3


def test_requests_come_at_their_times(library: Library) -> None:
    first, second = answers([[1], [10]], Schedule(1, [0.0, 0.02]))
    assert second.sent - first.sent == pytest.approx(0.02)
    assert second.chunks[0] >= second.sent
