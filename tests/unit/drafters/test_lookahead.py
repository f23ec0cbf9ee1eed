"""Lookahead: the window's answers become the next window, and its runs go into the pool."""

from __future__ import annotations

import numpy as np

from forerun.core.draft import Draft
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult
from forerun.drafters.lookahead import LookaheadDrafter, LookaheadSession, Pool


def one_hot_rows(*answers: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    rows = np.zeros((len(answers), 50), dtype=np.float32)
    rows[np.arange(len(answers)), answers] = 1.0
    return rows


def observe(session: LookaheadSession, draft: Draft, path: tuple[int, ...], *answers: int) -> None:
    request = session.request
    last = path[-1] + 1 if path else 0
    tokens = (*(draft.tokens[node] for node in path), answers[last])
    input_tokens = (request.tokens[-1],)
    for token in tokens:
        request.append(token, 1000)
    session.observe(StepResult(request, input_tokens, draft, path, tokens, rows=one_hot_rows(*answers)))


def test_the_answers_are_the_next_window_and_their_runs_are_drafted() -> None:
    session = LookaheadDrafter(50).open(Request([1, 2], Sampling()))
    # Guesses 20, 21, 22; the target says 9 after the root, and 30, 31, 32 after the guesses.
    observe(session, Draft.chain((20, 21, 22)), (), 9, 30, 31, 32)
    draft = session.propose(6)
    window = [draft.tokens[node] for node in draft.path_to(len(draft) - 1)]
    assert window == [30, 31, 32]
    assert session.propose_after((21,), 4).tokens[:2] == (22, 32)


def test_the_window_moves_on_by_what_was_accepted() -> None:
    session = LookaheadDrafter(50).open(Request([1, 2], Sampling()))
    observe(session, Draft.chain((20, 21, 22)), (0, 1), 20, 21, 31, 32)
    assert session.request.tokens[2:] == [20, 21, 31]
    draft = session.propose(2)
    assert draft.tokens[draft.path_to(len(draft) - 1)[0]] == 32


def test_the_texts_own_runs_are_in_the_pool() -> None:
    session = LookaheadDrafter(50).open(Request([4, 5, 6, 7, 1, 4], Sampling()))
    draft = session.propose(6)
    assert draft.tokens[:3] == (5, 6, 7)


def test_the_pool_keeps_the_latest_runs_of_a_token() -> None:
    pool = Pool()
    for last in range(10):
        pool.add(1, (2, last))
    pool.add(1, (2, 6))
    assert pool.after(1) == [(2, 6), (2, 9), (2, 8), (2, 7), (2, 5), (2, 4)]
