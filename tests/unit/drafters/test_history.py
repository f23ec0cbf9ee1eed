"""The memory of earlier requests: bounded, apart, and safe on disk."""

from __future__ import annotations

import json
import logging
import zipfile
from pathlib import Path

import numpy as np
import pytest

from forerun.drafters.automaton import START
from forerun.drafters.history import History, SpaceReport
from forerun.errors import UsageError


def found(history: History, text: list[int], name: str = "") -> int:
    """Longest match of a text in a space."""
    return max(g.index.follow(START, 0, text)[1] for g in history.space(name).generations)


def test_texts_are_found_again_and_spaces_are_apart() -> None:
    history = History()
    history.space("a").add([1, 2, 3, 4])
    assert found(history, [2, 3, 4], "a") == 3
    assert found(history, [2, 3, 4], "b") == 0


def test_the_limit_holds_and_the_oldest_goes_first() -> None:
    history = History(40)
    for start in range(0, 1000, 7):
        history.space().add(list(range(start, start + 7)))
        assert history.space().tokens <= 40
    assert found(history, [994, 995, 996]) == 3
    assert found(history, [0, 1, 2]) == 0


def test_of_a_long_text_the_end_is_kept() -> None:
    history = History(20)
    history.space().add(list(range(100)))
    assert history.space().tokens == 10
    assert found(history, list(range(90, 100))) == 10


def test_the_space_used_longest_ago_is_forgotten() -> None:
    history = History(100, most_spaces=2)
    for name in ("a", "b", "a", "c"):
        history.space(name).add([1, 2, 3])
    assert [report.name for report in history.inspect()] == ["a", "c"]
    history.clear("a")
    assert history.inspect() == [SpaceReport("c", 1, 3)]
    history.clear()
    assert history.inspect() == []


@pytest.mark.parametrize("limit", [0, 3, -1])
def test_a_memory_that_holds_nothing_is_refused(limit: int) -> None:
    with pytest.raises(UsageError, match="holds nothing"):
        History(limit)


def test_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "memory.npz"
    history = History(vocabulary="toy")
    history.space("a").add([1, 2, 3])
    history.space("a").add([4, 5])
    history.space("ü").add([7, 8, 9])
    history.save(path)
    again = History.load(path, vocabulary="toy")
    assert again.inspect() == history.inspect()
    assert [text.tolist() for text in again.space("a").texts()] == [[1, 2, 3], [4, 5]]
    assert [p.name for p in path.parent.iterdir()] == ["memory.npz"]
    with pytest.raises(UsageError, match="toy, not of other"):
        History.load(path, vocabulary="other")


def test_nothing_saved_is_nothing_loaded(tmp_path: Path) -> None:
    assert History.load(tmp_path / "none").inspect() == []
    History().save(tmp_path / "empty")
    assert History.load(tmp_path / "empty").inspect() == []


def damage(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "flipped":
        path.write_bytes(whole[:90] + bytes([whole[90] ^ 0xFF]) + whole[91:])
    elif how == "text":
        path.write_text("not a memory")
    elif how == "no-head":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("x", "y")
    else:
        heads = {
            "format": {"format": 99, "vocabulary": "", "spaces": ["a"]},
            "names": {"format": 1, "vocabulary": "", "spaces": [3]},
            "list": ["a"],
            "lengths": {"format": 1, "vocabulary": "", "spaces": ["a"]},
        }
        np.savez(
            path.with_suffix(".npz"),
            head=np.frombuffer(json.dumps(heads[how]).encode(), dtype=np.uint8),
            lengths=np.array([7 if how == "lengths" else 2]),
            tokens=np.array([1, 2], dtype=np.int32),
        )


@pytest.mark.parametrize("how", ["empty", "cut", "flipped", "text", "no-head", "format", "names", "list", "lengths"])
def test_a_damaged_file_is_set_aside_with_a_warning(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "memory.npz"
    history = History()
    history.space("a").add(list(range(50)))
    history.save(path)
    damage(path, how)
    broken = path.read_bytes()
    with caplog.at_level(logging.WARNING):
        again = History.load(path)
    assert again.inspect() == []
    assert "damaged" in caplog.text
    assert not path.exists()
    assert (tmp_path / "memory.npz.damaged").read_bytes() == broken
