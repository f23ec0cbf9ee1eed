"""The tokens of a small head: by size, by a list, by a text; the ranking is measured once and kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forerun.assembly import head_ids as module
from forerun.assembly.head_ids import head_ids
from forerun.errors import UsageError
from tests.unit.assembly.found import tiny


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "library_texts", lambda: iter(["etaoin etaoin eta"]))
    return tmp_path / "home"


def test_a_size_takes_the_most_useful() -> None:
    ids = head_ids("4", tiny()).tolist()
    assert ids == sorted(ids)
    assert {ord("e"), ord("t"), ord("a")} <= set(ids)
    assert head_ids("1k", tiny()).tolist() == list(range(257))


def test_a_list_of_ids_in_either_form(tmp_path: Path) -> None:
    file = tmp_path / "ids"
    for text in (json.dumps([5, 3, 256]), "5\n3 256\n"):
        file.write_text(text)
        assert head_ids(str(file), tiny()).tolist() == [5, 3, 256]


def test_a_text_means_its_tokens(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text("some text, not numbers")
    assert set(b"some text, not numbers") <= set(head_ids(str(file), tiny()).tolist())


@pytest.mark.parametrize("wanted", ["0", "0k"])
def test_a_head_of_nothing(wanted: str) -> None:
    with pytest.raises(UsageError, match="a head of no rows proposes nothing"):
        head_ids(wanted, tiny())


def test_neither_a_size_nor_a_file(tmp_path: Path) -> None:
    for wanted in ("many", str(tmp_path)):
        with pytest.raises(UsageError, match="is neither a size such as 32k nor a file that can be read"):
            head_ids(wanted, tiny())


def test_the_ranking_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = head_ids("20", tiny()).tolist()
    [kept] = (home / "heads").iterdir()
    monkeypatch.setattr(module, "library_texts", lambda: pytest.fail("it was measured again"))
    assert head_ids("20", tiny()).tolist() == first
    assert kept.name == f"{tiny().vocabulary}.npy"


@pytest.mark.parametrize(
    "content",
    [b"not an array", np.arange(5.0), np.zeros(5, np.int32), np.array([3, 257], np.int32), np.empty(0, np.int32)],
    ids=["bytes", "floats", "repeated", "out of range", "empty"],
)
def test_a_damaged_ranking_is_set_aside_and_measured_again(home: Path, content: bytes | np.ndarray) -> None:
    wanted = head_ids("20", tiny()).tolist()
    [kept] = (home / "heads").iterdir()
    if isinstance(content, bytes):
        kept.write_bytes(content)
    else:
        np.save(kept, content)
    assert head_ids("20", tiny()).tolist() == wanted
    assert len(list((home / "heads").glob("*.damaged"))) == 1


def test_without_a_place_to_keep_it_there_is_a_ranking_all_the_same(home: Path) -> None:
    home.write_text("a file where the folder should be")
    assert len(head_ids("20", tiny())) == 20
