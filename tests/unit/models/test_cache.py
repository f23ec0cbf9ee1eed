"""The cache hands out what was pulled or says what is wrong; it holds, lists and removes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forerun.errors import FetchError, ModelFileError
from forerun.models import cache as cache_module
from forerun.models.cache import Cache, writing
from forerun.models.pull import pull

if TYPE_CHECKING:
    from tests.unit.models.conftest import RecordedProgress, TinyModel


@pytest.fixture
def pulled(named: TinyModel, cache: Cache) -> Path:
    return pull(named.entry, None, cache)


def refuse_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> str:
        pytest.fail("read the whole file again")

    monkeypatch.setattr(cache_module, "digest_of", refuse)


def test_empty_cache(named: TinyModel, cache: Cache) -> None:
    assert cache.get(named.entry) is None
    assert cache.contents() == []
    assert cache.remove(named.entry) == 0
    assert not cache.home.exists()


def test_unchanged_file_is_not_read_again(
    named: TinyModel, cache: Cache, pulled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_hashing(monkeypatch)
    assert cache.get(named.entry) == pulled


def test_touched_file_is_read_once_more(
    named: TinyModel, cache: Cache, pulled: Path, progress: RecordedProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(pulled, ns=(1, 1))
    assert cache.get(named.entry, progress) == pulled
    assert [(text, total, sum(steps)) for text, total, steps in progress.tasks] == [
        ("checking tiny", named.entry.size, named.entry.size)
    ]
    refuse_hashing(monkeypatch)
    assert cache.get(named.entry) == pulled


@pytest.mark.parametrize("stamp", [None, "", "[]", '{"size": 1}', "\xff"])
def test_lost_or_damaged_stamp(named: TinyModel, cache: Cache, pulled: Path, stamp: str | None) -> None:
    path = pulled.with_name(pulled.name + ".verified")
    good = path.read_text()
    if stamp is None:
        path.unlink()
    else:
        path.write_bytes(stamp.encode("latin-1"))
    assert cache.get(named.entry) == pulled
    assert path.read_text() == good


def test_stamp_of_another_edition_is_not_believed(named: TinyModel, cache: Cache, pulled: Path) -> None:
    path = pulled.with_name(pulled.name + ".verified")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sha256": "0" * 64}))
    pulled_stat = pulled.stat()
    pulled.write_bytes(bytes(len(named.data)))
    os.utime(pulled, ns=(pulled_stat.st_atime_ns, pulled_stat.st_mtime_ns))
    with pytest.raises(ModelFileError, match="SHA-256"):
        cache.get(named.entry)


def test_tampered_file_is_found_at_the_next_use(named: TinyModel, cache: Cache, pulled: Path) -> None:
    before = pulled.stat().st_mtime_ns
    with open(pulled, "r+b") as file:
        file.write(b"evil")
    os.utime(pulled, ns=(before + 1, before + 1))
    for _ in range(2):  # and again: a failed check leaves no stamp
        with pytest.raises(ModelFileError, match=r"is not the file that was pulled .*`forerun pull tiny`") as caught:
            cache.get(named.entry)
        assert "\n" not in str(caught.value)


def test_full_check_finds_what_keeps_size_and_time(named: TinyModel, cache: Cache, pulled: Path) -> None:
    before = pulled.stat()
    with open(pulled, "r+b") as file:
        file.write(b"evil")
    os.utime(pulled, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ModelFileError, match="SHA-256"):
        cache.get(named.entry, full=True)


@pytest.mark.parametrize(("change", "how"), [(-1, "truncated"), (1, "too long")])
def test_other_size(named: TinyModel, cache: Cache, pulled: Path, change: int, how: str) -> None:
    os.truncate(pulled, named.entry.size + change)
    said = f"is {how} ({named.entry.size + change:,} of {named.entry.size:,} bytes); run `forerun pull tiny`"
    with pytest.raises(ModelFileError) as caught:
        cache.get(named.entry)
    assert said in str(caught.value)


def test_stamp_that_cannot_be_written(
    named: TinyModel, cache: Cache, pulled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled.with_name(pulled.name + ".verified").unlink()

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "write_text", refuse)
    assert cache.get(named.entry) == pulled


def test_file_that_cannot_be_read(
    named: TinyModel, cache: Cache, pulled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(cache_module, "open", refuse, raising=False)
    with pytest.raises(ModelFileError, match=r"cannot read .*: permission denied"):
        cache.get(named.entry, full=True)


def test_contents_and_remove(named: TinyModel, cache: Cache, pulled: Path) -> None:
    cache.partial(named.entry).write_bytes(b"12345")
    cache.arrivals(named.entry).mkdir()
    (cache.arrivals(named.entry) / "wheel").write_bytes(b"678")
    [held] = cache.contents()
    assert (held.entry, held.path, held.size, held.partial_size) == (named.entry, pulled, named.entry.size, 8)
    freed = cache.remove(named.entry)
    assert freed > named.entry.size + 8  # the stamp counts too
    assert cache.contents() == []
    assert [path for path in cache.home.rglob("*") if path.is_file() and path.suffix != ".lock"] == []


def test_removal_that_the_system_refuses(
    named: TinyModel, cache: Cache, pulled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(ModelFileError, match=r"cannot remove .*tiny\.gguf: permission denied"):
            cache.remove(named.entry)
    assert cache.get(named.entry) == pulled


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_and_full_quota(tmp_path: Path, code: int) -> None:
    with pytest.raises(FetchError, match="no space left"), writing(tmp_path):
        raise OSError(code, os.strerror(code))
