"""Files of the cache: whole or not at all, one writer at a time, and nobody's file is ever in danger."""

from __future__ import annotations

import logging
import os
import stat
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from forerun.core.files import (
    DamagedError,
    default_home,
    keep,
    locked,
    read_arrays,
    set_aside,
    within,
    write_arrays,
    writing,
)
from forerun.errors import UsageError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_home_is_what_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    assert default_home() == tmp_path
    monkeypatch.setenv("FORERUN_HOME", "~/elsewhere")
    assert default_home() == Path.home() / "elsewhere"


@pytest.mark.skipif(sys.platform != "linux", reason="the platform's own folder")
@pytest.mark.parametrize(("xdg", "home"), [("/xdg", "/xdg/forerun"), (None, "/me/.cache/forerun")])
def test_home_of_the_platform(monkeypatch: pytest.MonkeyPatch, xdg: str | None, home: str) -> None:
    for name in ("FORERUN_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/me")
    if xdg is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert default_home() == Path(home)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with writing(path) as file:
        file.write(b"first")
    with pytest.raises(ZeroDivisionError), writing(path) as file:
        file.write(bytes([1 // (file.tell() * 0)]))
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="modes and links")
def test_links_stay_links_and_modes_stay_modes(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    real.chmod(0o600)
    link.symlink_to(real)
    with writing(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_damaged_files_get_names_of_their_own(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = home / "memory" / "file"
    path.parent.mkdir()
    for content in (b"one", b"two"):
        path.write_bytes(content)
        with caplog.at_level(logging.WARNING):
            set_aside(path, ValueError("why"))
    assert not path.exists()
    assert {kept.read_bytes() for kept in path.parent.iterdir()} == {b"one", b"two"}
    assert {kept.suffix for kept in path.parent.iterdir()} == {".damaged"}
    assert "is damaged (why); it is set aside as file." in caplog.text


def test_a_file_elsewhere_stays_where_it_is(home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mine"
    path.write_bytes(b"mine")
    (home / "link").symlink_to(tmp_path, target_is_directory=True)
    for name in (path, home / ".." / "mine", home / "link" / "mine"):
        assert not within(name, home)
        with caplog.at_level(logging.WARNING):
            set_aside(name, ValueError("why"))
    assert path.read_bytes() == b"mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "mine"]
    assert caplog.text.count("left where it is") == 3


def test_what_cannot_be_moved_is_left_without_a_trace(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = home / "folder"
    folder.mkdir()
    with caplog.at_level(logging.WARNING):
        set_aside(folder, ValueError("why"))
    assert list(home.iterdir()) == [folder]
    assert "left where it is" in caplog.text


def test_only_one_is_inside_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    order: list[str] = []

    def other() -> None:
        with locked(path):
            order.append("other")

    with locked(path):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]
    assert not path.exists()


@pytest.mark.parametrize("error", [OSError("no space"), UsageError("not ours")])
def test_what_cannot_be_kept_is_a_warning(tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def save(path: Path) -> None:
        raise error

    with caplog.at_level(logging.WARNING):
        keep(tmp_path / "file", save)
    assert f"could not be written ({error})" in caplog.text


def test_arrays_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_arrays(path, {"format": 1, "name": "ü"}, a=np.arange(3), b=np.zeros((2, 2), np.float16))
    head, (b, a) = read_arrays(path, "b", "a")
    assert head == {"format": 1, "name": "ü"}
    assert a.tolist() == [0, 1, 2]
    assert (b.shape, str(b.dtype)) == ((2, 2), "float16")


def test_anything_else_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_arrays(path, {"format": 1}, a=np.arange(1000) % 7)
    whole = path.read_bytes()
    others = [whole[:at] for at in range(0, len(whole), 7)]
    others += [b"text", b"GGUF" + whole, b"[" * 100_000]
    np.save(tmp_path / "array.npy", np.arange(3))
    others.append((tmp_path / "array.npy").read_bytes())
    for other in others:
        path.write_bytes(other)
        with pytest.raises(DamagedError):
            read_arrays(path, "a")
    write_arrays(path, [1], a=np.arange(3))  # type: ignore[arg-type]
    with pytest.raises(DamagedError, match="not an object"):
        read_arrays(path, "a")


def test_any_flipped_byte_is_damaged_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_arrays(path, {"format": 1}, a=np.arange(40) % 7)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            head, (a,) = read_arrays(path, "a")
        except DamagedError:
            continue
        assert head == {"format": 1}
        assert a.tolist() == [n % 7 for n in range(40)]


def test_what_cannot_be_read_is_not_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "none", "a")
    with pytest.raises(IsADirectoryError if os.name == "posix" else OSError):
        read_arrays(tmp_path, "a")
