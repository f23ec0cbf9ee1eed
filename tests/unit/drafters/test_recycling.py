"""Token recycling: what goes into the matrix, what comes out, and how it is kept."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from forerun.core.draft import Draft
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.recycling import Matrix, RecyclingDrafter, RecyclingSession, Row, kind
from forerun.errors import UsageError
from forerun.testing import draft_of


def row(*ranked: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Logits `[20]` that rank these ids first, clearly."""
    logits = np.full(20, -9.0, dtype=np.float32)
    for rank, token in enumerate(ranked):
        logits[token] = 5.0 - rank
    return logits


def observe(session: RecyclingSession, draft: Draft, path: tuple[int, ...], bonus: int, *rows: object) -> None:
    transcript = session.transcript
    tokens = (*(draft.tokens[node] for node in path), bonus)
    input_tokens = (transcript.tokens[-1],)
    for token in tokens:
        transcript.add(token)
    session.observe(StepResult(transcript, input_tokens, draft, path, tokens, rows=np.stack(rows)))  # type: ignore[arg-type]


def text(*tokens: int) -> Transcript:
    return Transcript(Request(tokens))


def proposed(drafter: RecyclingDrafter, nodes: int, *tokens: int) -> Draft:
    return draft_of(drafter, drafter.open(text(*tokens)), nodes)


def test_nothing_is_known_at_first() -> None:
    assert len(proposed(RecyclingDrafter(20), 5, 1, 2)) == 0


def test_rows_of_rejected_nodes_are_used_too() -> None:
    drafter = RecyclingDrafter(20, floor=0.0)
    session = drafter.open(text(1, 2))
    draft = Draft((7, 8), (-1, -1))
    observe(session, draft, (), 9, row(9, 7), row(3, 4), row(5, 6))
    assert [drafter.shared.matrix.get(token) is not None for token in (2, 7, 8, 9)] == [True, True, True, False]
    found = draft_of(drafter, session, 4, (8,))
    assert [found.tokens[node] for node in found.children(-1)][:2] == [5, 6]


def test_the_tree_follows_the_matrix_through_levels() -> None:
    drafter = RecyclingDrafter(20, floor=0.0)
    drafter.shared.matrix.put(1, [2, 3], [0.9, 0.1])
    drafter.shared.matrix.put(2, [4], [1.0])
    draft = proposed(drafter, 3, 1)
    assert (draft.tokens, draft.parents) == ((2, 4, 3), (-1, 0, -1))


def test_padding_is_not_proposed() -> None:
    drafter = RecyclingDrafter(3, floor=0.0)
    drafter.shared.matrix.put(1, [9, 2], [0.6, 0.4])
    assert proposed(drafter, 4, 1).tokens == (2,)


def test_scores_learn_what_candidates_are_worth() -> None:
    drafter = RecyclingDrafter(20)
    before = drafter.shared.ranks.score(kind(0, 0.9))
    for _ in range(30):
        drafter.shared.ranks.add(Row.of([1, 2], [0.9, 0.1]), 2)
    assert drafter.shared.ranks.score(kind(0, 0.9)) < 0.3 * before
    assert drafter.shared.ranks.score(kind(1, 0.1)) > 0.6


def test_what_was_committed_tells_how_good_the_matrix_was() -> None:
    """Before the new rows are put in: they know the answer."""
    drafter = RecyclingDrafter(20)
    drafter.shared.matrix.put(2, [5, 9], [0.9, 0.1])
    before = [drafter.shared.ranks.score(kind(0, 0.9)), drafter.shared.ranks.score(kind(1, 0.1))]
    observe(drafter.open(text(1, 2)), Draft(), (), 9, row(9, 7))
    after = [drafter.shared.ranks.score(kind(0, 0.9)), drafter.shared.ranks.score(kind(1, 0.1))]
    assert after[0] < before[0]
    assert after[1] > before[1]


def test_what_the_target_nearly_said_may_come_next() -> None:
    drafter = RecyclingDrafter(20, floor=0.0)
    session = drafter.open(text(1, 2))
    observe(session, Draft(), (), 9, row(9, 7, 3))
    drafter.shared.matrix.put(7, [4], [1.0])
    found = draft_of(drafter, session, 4)
    first = [found.tokens[node] for node in found.children(-1)]
    assert first[:2] == [7, 3]
    assert 9 not in first
    assert [found.tokens[node] for node in found.children(found.tokens.index(7))] == [4]
    assert 7 not in draft_of(drafter, session, 4, (5,)).tokens, "further on, nothing is known of it"


def test_how_often_a_runner_up_comes_next_is_learned() -> None:
    drafter = RecyclingDrafter(20)
    session = drafter.open(text(1, 2))
    before = drafter.shared.runners_up.score(kind(0, 0.7))
    for _ in range(30):
        observe(session, Draft(), (), 9, row(9, 7))
        observe(session, Draft(), (), 7, row(7, 9))
    assert drafter.shared.runners_up.score(kind(0, 0.99)) > 0.6
    assert drafter.shared.runners_up.score(kind(0, 0.7)) == before


def test_a_step_without_rows_says_nothing() -> None:
    drafter = RecyclingDrafter(20)
    session = drafter.open(text(1, 2))
    session.observe(StepResult(session.transcript, (1, 2), decoded=False))
    assert len(drafter.shared.matrix) == 0


def test_the_row_updated_longest_ago_goes() -> None:
    matrix = Matrix(limit=2)
    for token in (1, 2, 1, 3):
        matrix.put(token, [5], [1.0])
    assert [matrix.get(token) is not None for token in (1, 2, 3)] == [True, False, True]
    with pytest.raises(UsageError, match="holds nothing"):
        Matrix(limit=0)


def test_saved_is_loaded_and_small(tmp_path: Path) -> None:
    path = tmp_path / "matrix.npz"
    matrix = Matrix(limit=10_000, vocabulary="toy")
    rng = np.random.default_rng(1)
    for token in rng.permutation(150_000)[:10_000].tolist():
        matrix.put(token, rng.integers(0, 150_000, 8).tolist(), [0.125] * 8)
    matrix.put(3, [4], [0.5])
    drafter = RecyclingDrafter(150_000, matrix, path=path)
    drafter.close()
    assert path.stat().st_size < 500_000
    again = Matrix.load(path, limit=10_000, vocabulary="toy")
    assert len(again) == 10_000
    assert again.get(3) == Row.of([4], [0.5])
    with pytest.raises(UsageError, match="of toy, not of other"):
        Matrix.load(path, vocabulary="other")
    assert len(Matrix.load(tmp_path / "none")) == 0


def spoil(path: Path, how: str) -> bytes:
    matrix = Matrix()
    matrix.put(1, [2], [1.0])
    matrix.save(path)
    if how == "history":
        np.savez(path, head=np.frombuffer(b'{"format": 1, "vocabulary": ""}', dtype=np.uint8), tokens=np.zeros(2))
    else:
        path.write_bytes({"empty": b"", "cut": path.read_bytes()[:200], "text": b"hello"}[how])
    return path.read_bytes()


@pytest.mark.parametrize("how", ["empty", "cut", "text", "history"])
def test_a_damaged_file_of_the_cache_is_set_aside(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    path = tmp_path / "matrix.npz"
    spoilt = spoil(path, how)
    with caplog.at_level(logging.WARNING):
        assert len(Matrix.load(path)) == 0
    assert "damaged" in caplog.text
    assert not path.exists()
    assert [kept.read_bytes() for kept in tmp_path.glob("*.damaged")] == [spoilt]


@pytest.mark.parametrize("how", ["empty", "cut", "text", "history"])
def test_a_file_elsewhere_is_neither_moved_nor_written_over(tmp_path: Path, how: str) -> None:
    path = tmp_path / "matrix.npz"
    spoilt = spoil(path, how)
    with pytest.raises(UsageError, match="no token matrix"):
        Matrix.load(path)
    matrix = Matrix()
    matrix.put(1, [2], [1.0])
    with pytest.raises(UsageError, match="no token matrix"):
        matrix.save(path)
    assert path.read_bytes() == spoilt


def test_two_writers_lose_nothing_and_the_newest_row_wins(tmp_path: Path) -> None:
    path = tmp_path / "matrix.npz"
    first = Matrix()
    for token in (1, 2, 3):
        first.put(token, [9], [1.0])
    first.save(path)
    one, two = Matrix.load(path), Matrix.load(path)
    one.put(1, [5], [1.0])
    two.put(2, [6], [1.0])
    two.put(4, [7], [1.0])
    two.put(1, [8], [1.0])
    two.save(path)
    one.save(path)
    assert not one.changed
    rows = [Matrix.load(path).get(token) for token in (1, 2, 3, 4)]
    assert [row and row[0] for row in rows] == [(5,), (6,), (9,), (7,)]
