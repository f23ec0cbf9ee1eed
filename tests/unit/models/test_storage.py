"""What is kept is listed as what it is; clearing up removes what serves nothing, and nothing else anywhere."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forerun.errors import ModelFileError
from forerun.models import Cache, remove, storage
from forerun.models.storage import PACKED_HEAD, PACKED_MAGIC, contents, files_as_stated, make_room, prune

if TYPE_CHECKING:
    from tests.unit.models.conftest import TinyModel

LONG_AGO = 1_000_000_000
Keep = Callable[..., Path]


@pytest.fixture
def home(named: TinyModel, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with `tiny` as the only model that has a name; it was not pulled."""
    monkeypatch.setattr(storage, "CATALOGUE", (named.entry,))
    return cache.home


@pytest.fixture
def keep(home: Path) -> Keep:
    """`keep(name, content=b"x", used=LONG_AGO)` puts a file below the home."""

    def put(name: str, content: bytes = b"x", used: float = LONG_AGO) -> Path:
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (used, used))
        return path

    return put


def packed(*files: Path, size: int = 1000) -> bytes:
    """A file of repacked weights made from those files, without any."""
    index = json.dumps({"files": files_as_stated(files), "matrices": {}}).encode()
    return (PACKED_HEAD.pack(PACKED_MAGIC, len(index), 0) + index).ljust(size, b"\0")


def profile(file: Path) -> bytes:
    return json.dumps({"of": ["cpu", *files_as_stated([file])[0], "name"], "seconds": {"1": 1}}).encode()


def name(number: int) -> str:
    return f"packed/m-{number:012x}-{number:016x}.packed"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def listed(home: Path) -> dict[str, tuple[str, str]]:
    return {kept.path.relative_to(home).as_posix(): (kept.kind, kept.state) for kept in contents()}


def test_an_empty_home(home: Path) -> None:
    assert contents() == prune(everything=True) == []
    assert not home.exists()


def everything(keep: Keep, model: Path) -> dict[str, tuple[str, str]]:
    """One of each kind in each state, and what `contents` says of it."""
    gone = model.with_name("gone")
    gone.write_bytes(b"")
    of_gone = packed(gone), profile(gone)
    gone.unlink()
    made = {
        ("models/tiny.gguf", b"x"): ("models", ""),
        ("partial/tiny.gguf.part", b"x"): ("partial", "partial"),
        ("partial/tiny.gguf.arrivals/wheel", b"x"): ("partial", "partial"),
        (name(1), packed(model)): ("packed", ""),
        (name(2), of_gone[0]): ("packed", "orphan"),
        (name(3), b"older kind"): ("packed", "orphan"),
        (name(4), PACKED_HEAD.pack(PACKED_MAGIC, 2, 0) + b"{}"): ("packed", "orphan"),
        (f"{name(5)}.12.34.partial", b"x"): ("packed", "partial"),
        (f"{name(6)}.damaged", b"x"): ("packed", "damaged"),
        ("profiles/00000000000000000001.json", profile(model)): ("profiles", ""),
        ("profiles/00000000000000000002.json", of_gone[1]): ("profiles", "orphan"),
        ("profiles/00000000000000000003.json", b"{}"): ("profiles", "orphan"),
        ("heads/0000000000000001.npy", b"x"): ("heads", ""),
        ("memory/a.history.npz", b"x"): ("memory", ""),
        ("memory/a.matrix.npz", b"x"): ("memory", ""),
        ("memory/a.history.npz.abc.damaged", b"x"): ("memory", "damaged"),
    }
    for path, content in made:
        keep(path, content)
    return {path: said for (path, _), said in made.items()}


def test_everything_is_what_it_is(home: Path, keep: Keep, model: Path) -> None:
    wanted = everything(keep, model)
    wanted["partial/tiny.gguf.arrivals"] = wanted.pop("partial/tiny.gguf.arrivals/wheel")
    assert listed(home) == wanted
    kinds = [kept.kind for kept in contents()]
    assert kinds == sorted(kinds, key=["models", "partial", "packed", "profiles", "heads", "memory"].index)


def test_prune_removes_what_serves_nothing(home: Path, keep: Keep, model: Path) -> None:
    before = everything(keep, model)
    gone = prune()
    assert sum(kept.size for kept in gone) > 0
    assert sorted(listed(home)) == sorted(path for path, (_, state) in before.items() if not state)
    assert prune() == []
    prune(everything=True)
    assert sorted(listed(home)) == ["memory/a.history.npz", "memory/a.matrix.npz", "models/tiny.gguf"]


def test_making_room_leaves_what_may_still_be_wanted(home: Path, keep: Keep, model: Path) -> None:
    before = everything(keep, model)
    make_room(1, home)
    left = {path for path, (kind, state) in before.items() if state in ("", "damaged") or kind == "partial"}
    assert {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()} - {
        "locks/tiny.lock"
    } == left


def test_other_files_are_neither_listed_nor_touched(home: Path, keep: Keep, model: Path) -> None:
    names = ["packed/mine.packed", "profiles/mine.json", "heads/x.npy", "memory/notes.txt", "partial/other.gguf.part"]
    names += ["packed/x.partial", "mine.damaged", "models/mine.gguf", "models/other.gguf.damaged"]
    for path in names:
        keep(path)
    assert contents() == prune(everything=True) == []
    assert all((home / path).read_bytes() == b"x" for path in names)


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_nothing_outside_is_touched_wherever_links_lead(home: Path, tmp_path: Path, keep: Keep, model: Path) -> None:
    outside = tmp_path / "outside"
    for path in ("packed/m-000000000001-0000000000000001.packed", "partial/tiny.gguf.part", "models/tiny.gguf"):
        (outside / path).parent.mkdir(parents=True)
        (outside / path).write_bytes(b"x")
    home.mkdir()
    for folder in outside.iterdir():
        (home / folder.name).symlink_to(folder, target_is_directory=True)
    heads = outside / "heads" / "0000000000000001.npy"
    heads.parent.mkdir()
    heads.write_bytes(b"x")
    (home / "heads").mkdir()
    (home / "heads" / heads.name).symlink_to(heads)
    before = sorted(path for path in outside.rglob("*") if path.is_file())
    assert [kept.kind for kept in prune(everything=True)] == ["heads"]  # the link, and not what it leads to
    make_room(storage.PACKED_LIMIT, home)
    with pytest.raises(ModelFileError, match="lies outside of"):
        remove("tiny")
    assert sorted(path for path in outside.rglob("*") if path.is_file()) == before


def test_beyond_the_limit_the_longest_unused_goes_first(
    home: Path, keep: Keep, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PACKED_LIMIT", 3000)
    for number in range(1, 6):
        keep(name(number), packed(model), LONG_AGO + number)
    assert sorted(kept.path for kept in make_room(1000, home)) == [home / name(n) for n in (1, 2, 3)]
    keep(name(6), packed(model), time.time())
    keep(name(7), packed(model, size=5000), time.time())
    assert [kept.path for kept in prune()] == [home / name(5), home / name(4)]  # the others are in use


def test_what_is_being_written_or_pulled_is_let_be(home: Path, keep: Keep, named: TinyModel, cache: Cache) -> None:
    writing = keep(f"{name(1)}.12.34.partial", used=time.time())
    pulling = keep("partial/tiny.gguf.part", used=time.time())
    with cache.lock(named.entry):
        assert prune() == []
    assert [kept.path for kept in prune()] == [pulling]
    assert writing.exists()


def test_removing_a_model_removes_what_was_made_from_it(home: Path, keep: Keep, model: Path, named: TinyModel) -> None:
    tiny = keep("models/tiny.gguf", b"GGUF and more")
    others = [keep(name(1), packed(model)), keep("profiles/00000000000000000001.json", profile(model))]
    own = [keep(name(2), packed(tiny)), keep("profiles/00000000000000000002.json", profile(tiny))]
    size = sum(path.stat().st_size for path in (tiny, *own))
    assert remove("tiny") == size
    assert all(path.exists() for path in others)
    assert not any(path.exists() for path in (tiny, *own))
    assert remove("tiny") == 0


def test_a_model_that_changed_is_another_one(keep: Keep, model: Path) -> None:
    keep(name(1), packed(model))
    os.utime(model, (1, 1))
    assert [kept.state for kept in contents()] == ["orphan"]
