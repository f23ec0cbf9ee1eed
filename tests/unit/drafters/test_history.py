"""The memory of earlier requests: bounded, apart, and safe on disk."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from forerun.drafters.automaton import START, SuffixAutomaton
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
    assert sorted(p.name for p in path.parent.iterdir()) == [".memory.npz.lock", "memory.npz"]
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


HOWS = ["empty", "cut", "flipped", "text", "no-head", "format", "names", "list", "lengths"]


@pytest.fixture(params=HOWS)
def broken(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A damaged memory file in the cache."""
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    path = tmp_path / "memory.npz"
    history = History()
    history.space("a").add(list(range(50)))
    history.save(path)
    damage(path, request.param)
    return path


def test_a_damaged_file_of_the_cache_is_set_aside(broken: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = broken.read_bytes()
    with caplog.at_level(logging.WARNING):
        again = History.load(broken, own=True)
    assert again.inspect() == []
    assert "damaged" in caplog.text
    assert not broken.exists()
    assert [path.read_bytes() for path in broken.parent.glob("*.damaged")] == [content]
    again.space().add([1, 2])
    again.save(broken)
    assert [report.tokens for report in History.load(broken).inspect()] == [2]


def test_a_file_that_the_user_named_stays_as_it_is(broken: Path) -> None:
    content = broken.read_bytes()
    with pytest.raises(UsageError, match="is no memory file of forerun, or a damaged one") as caught:
        History.load(broken)
    assert "\n" not in str(caught.value)
    mine = History()
    mine.space().add([1, 2])
    with pytest.raises(UsageError, match="no memory file"):
        mine.save(broken)
    assert broken.read_bytes() == content
    assert list(broken.parent.glob("*.damaged")) == []


def test_token_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    history = History()
    history.space().add([1, 2, 9])
    history.save(path)
    assert History.load(path, vocab_size=10).space().tokens == 3
    with pytest.raises(UsageError, match="token ids outside the vocabulary"):
        History.load(path, vocab_size=9)


def test_what_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UsageError, match=r"cannot read the memory .*: is a directory"):
        History.load(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert History.load(tmp_path, own=True).inspect() == []
    assert "cannot be read" in caplog.text
    assert tmp_path.is_dir()


def kept(path: Path) -> dict[str, list[list[int]]]:
    history = History.load(path)
    return {r.name: [text.tolist() for text in history.space(r.name).texts()] for r in history.inspect()}


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    first = History()
    first.space("a").add([1, 2])
    first.save(path)
    one, two = History.load(path), History.load(path)
    one.space("a").add([3, 4])
    two.space("a").add([5, 6])
    two.space("b").add([7, 8])
    one.save(path)
    two.save(path)
    two.save(path)
    one.save(path)
    assert kept(path) == {"a": [[1, 2], [3, 4], [5, 6]], "b": [[7, 8]]}


def test_what_one_writer_forgets_is_gone_and_what_another_adds_stays(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    first = History()
    for name in ("a", "b"):
        first.space(name).add([1, 2])
    first.save(path)
    one, two = History.load(path), History.load(path)
    two.space("c").add([5, 6])
    two.save(path)
    one.clear("a")
    one.space("b").add([3, 4])
    one.save(path)
    assert kept(path) == {"c": [[5, 6]], "b": [[1, 2], [3, 4]]}
    one.clear()
    one.save(path)
    assert kept(path) == {"c": [[5, 6]]}


def test_merging_keeps_to_the_limits_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    History(20, most_spaces=2).save(path)
    one, two = History.load(path), History.load(path)
    for start in range(0, 40, 5):
        one.space("a").add(list(range(start, start + 5)))
        two.space("b").add(list(range(start, start + 5)))
    two.space("c").add([1, 2])
    one.save(path)
    two.save(path)
    assert [report.name for report in History.load(path).inspect()] == ["b", "c"]
    assert all(report.tokens <= 20 for report in History.load(path).inspect())


def test_writers_in_several_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    writer = (
        "import sys; from pathlib import Path; from forerun.drafters.history import History\n"
        "for n in range(5):\n"
        "    history = History.load(Path(sys.argv[1]))\n"
        "    history.space().add([int(sys.argv[2]), n])\n"
        "    history.save(Path(sys.argv[1]))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", writer, str(path), str(w)]) for w in range(3)]
    assert [process.wait() for process in writers] == [0, 0, 0]
    assert sorted(kept(path)[""]) == [[w, n] for w in range(3) for n in range(5)]


@pytest.mark.parametrize("at", [0, 1, 2, 5, 11])
def test_an_interrupt_in_the_middle_of_a_text_does_no_harm(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History()
    history.space().add([1, 2, 3, 1, 2, 4])
    torn = history.space().generations[0]
    assert found(history, [1, 2, 3]) == 3
    extend = SuffixAutomaton.extend
    steps = iter(range(100))

    def interrupted(self: SuffixAutomaton, last: int, token: int) -> int:
        if next(steps) == at:
            raise KeyboardInterrupt
        return extend(self, last, token)

    text = [2, 4, 7, 8, 9, 2, 4, 7, 8, 9, 5, 6]
    with monkeypatch.context() as patched:
        patched.setattr(SuffixAutomaton, "extend", interrupted)
        with pytest.raises(KeyboardInterrupt):
            history.space().add(text)
    (generation,) = history.space().generations
    assert generation is not torn
    assert history.space().generations == (generation,)
    assert [each.tolist() for each in history.space().texts()] == [[1, 2, 3, 1, 2, 4], text]
    assert history.space().tokens == 18
    assert found(history, text) == len(text)
    assert found(history, [1, 2, 3]) == 3
    history.space().add([9, 9])
    assert found(history, [9, 9]) == 2


def test_an_interrupt_while_the_index_is_made_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History()
    history.space().add([1, 2, 3])

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SuffixAutomaton, "extend", interrupted)
        with pytest.raises(KeyboardInterrupt):
            found(history, [1, 2, 3])
    assert found(history, [1, 2, 3]) == 3
