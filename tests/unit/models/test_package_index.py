"""The client of the package index: pages of both kinds, mirrors, credentials, and servers that misbehave."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forerun.errors import FetchError
from forerun.models.package_index import IndexFile, PackageIndex
from forerun.models.pip_settings import PipSettings

if TYPE_CHECKING:
    from tests.unit.models.conftest import FakeIndex

WHEEL = "some_data-1.0-py3-none-any.whl"
BODY = bytes(range(256)) * 5000
DIGEST = hashlib.sha256(BODY).hexdigest()
LIMIT = len(BODY)


@pytest.fixture
def serving(index: FakeIndex) -> FakeIndex:
    index.wheels = {
        "some_data-0.9-py3-none-any.whl": b"old",
        WHEEL: BODY,
        "some_data-1.0.tar.gz": b"source",
        "some_data-1.0-cp311-cp311-win32.whl": b"binary",
        "some_data_more-1.0-py3-none-any.whl": b"another project",
    }
    return index


def fetched(client: PackageIndex, to: Path, limit: int = LIMIT) -> bytes:
    client.fetch(client.find("some-data", "1.0"), to, limit, lambda done, total: None)
    return to.read_bytes()


@pytest.mark.parametrize("html", [False, True])
@pytest.mark.parametrize("hashes", [False, True])
def test_pages_of_both_kinds(serving: FakeIndex, tmp_path: Path, html: bool, hashes: bool) -> None:
    serving.html, serving.hashes = html, hashes
    found = serving.client().find("some-data", "1.0")
    assert found == IndexFile(WHEEL, f"{serving.url}/files/{WHEEL}", DIGEST if hashes else None)
    assert fetched(serving.client(), tmp_path / "wheel") == BODY


def test_report_ends_at_the_total(serving: FakeIndex, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    client = serving.client()
    client.fetch(client.find("some-data", "1.0"), tmp_path / "w", LIMIT, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(BODY), len(BODY))
    assert seen == sorted(seen)


def test_version_that_is_not_there(serving: FakeIndex) -> None:
    with pytest.raises(FetchError, match=rf"some-data 2\.0: {serving.url}/simple has no wheel of it"):
        serving.client().find("some-data", "2.0")


def test_project_that_is_not_there(serving: FakeIndex) -> None:
    with pytest.raises(FetchError, match="answered 404"):
        serving.client().find("other", "1.0")
    assert len(serving.log) == 1  # a clear answer is not asked for again


def test_extra_indexes_are_asked_in_turn(serving: FakeIndex, tmp_path: Path) -> None:
    nowhere = ("http://127.0.0.1:9/simple", (tmp_path / "missing").as_uri())
    settings = PipSettings(indexes=(*nowhere, f"{serving.url}/simple/"), timeout=5)
    assert PackageIndex(settings, attempts=1, wait=0).find("some-data", "1.0").sha256 == DIGEST


def test_index_in_a_local_folder(tmp_path: Path) -> None:
    (tmp_path / "simple" / "some-data").mkdir(parents=True)
    (tmp_path / "simple" / "some-data" / "index.html").write_text(
        f'<a href="{WHEEL}#sha256={DIGEST}" data-requires-python="&gt;=3.9">{WHEEL}</a>'
    )
    (tmp_path / "simple" / "some-data" / WHEEL).write_bytes(BODY)
    client = PackageIndex(PipSettings(indexes=((tmp_path / "simple").as_uri(),)), wait=0)
    assert fetched(client, tmp_path / "wheel") == BODY


def test_folder_of_wheels_comes_first(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "Some.Data-1.0-py3-none-any.whl").write_bytes(BODY)
    client = PackageIndex(PipSettings(indexes=(), wheels=(tmp_path / "wheels",)), wait=0)
    assert fetched(client, tmp_path / "wheel") == BODY
    with pytest.raises(FetchError, match="no-index"):
        client.find("other", "1.0")


def basic(login: str) -> str:
    return "Basic " + base64.b64encode(login.encode()).decode()


def test_credentials_of_the_url_go_to_its_host_alone(serving: FakeIndex, tmp_path: Path) -> None:
    serving.login = basic("me:p@ss")
    secret = serving.url.replace("http://", "http://me:p%40ss@") + "/simple"
    client = PackageIndex(PipSettings(indexes=(secret,), timeout=5), wait=0)
    assert fetched(client, tmp_path / "wheel") == BODY
    assert {login for _, _, login in serving.log} == {basic("me:p@ss")}
    assert client._login("http://elsewhere/files/x.whl") is None
    serving.login = basic("me:other")
    with pytest.raises(FetchError, match="wants other credentials") as caught:
        client.find("some-data", "1.0")
    assert "p@ss" not in str(caught.value)
    assert "p%40ss" not in str(caught.value)


def test_redirects_are_followed_without_the_credentials(
    serving: FakeIndex, other_index: FakeIndex, tmp_path: Path
) -> None:
    serving.elsewhere, other_index.wheels = other_index.url, serving.wheels
    secret = serving.url.replace("http://", "http://me:secret@") + "/simple"
    client = PackageIndex(PipSettings(indexes=(secret,), timeout=5), wait=0)
    other_index.cut = [1000]
    assert fetched(client, tmp_path / "wheel") == BODY
    assert {login for _, _, login in serving.log} == {basic("me:secret")}
    assert {login for _, _, login in other_index.log} == {None}
    assert other_index.wheel_requests() == [(WHEEL, None), (WHEEL, "bytes=1000-")]


def test_credentials_of_netrc(serving: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password word\n")
    (tmp_path / ".netrc").chmod(0o600)
    serving.login = basic("me:word")
    assert fetched(serving.client(), tmp_path / "wheel") == BODY


def test_proxy(serving: FakeIndex, tmp_path: Path) -> None:
    settings = PipSettings(indexes=("http://index.invalid/simple",), proxy=serving.url, timeout=5)
    assert fetched(PackageIndex(settings, wait=0), tmp_path / "wheel") == BODY


@pytest.mark.parametrize("status", [500, 503, 429])
def test_busy_server_is_asked_again(serving: FakeIndex, tmp_path: Path, status: int) -> None:
    serving.status = [status, status]
    assert fetched(serving.client(attempts=3), tmp_path / "wheel") == BODY
    serving.status = [status] * 3
    with pytest.raises(FetchError, match=f"answered {status}"):
        serving.client(attempts=3).find("some-data", "1.0")


def test_file_that_went_away(serving: FakeIndex, tmp_path: Path) -> None:
    client = serving.client()
    found = client.find("some-data", "1.0")
    del serving.wheels[WHEEL]
    with pytest.raises(FetchError, match=f"{WHEEL} answered 404"):
        client.fetch(found, tmp_path / "wheel", LIMIT, lambda done, total: None)


def test_connection_that_keeps_breaking(serving: FakeIndex, tmp_path: Path) -> None:
    client = serving.client(attempts=3)
    found = client.find("some-data", "1.0")
    serving.cut = [1000, 0, 0, 0]
    with pytest.raises(FetchError, match=r"broke off: .*what arrived is kept"):
        client.fetch(found, tmp_path / "wheel", LIMIT, lambda done, total: None)
    assert (tmp_path / "wheel").read_bytes() == BODY[:1000]


def test_many_breaks_with_progress_are_no_failure(serving: FakeIndex, tmp_path: Path) -> None:
    serving.cut = [100_000] * 10
    assert fetched(serving.client(attempts=1), tmp_path / "wheel") == BODY


def test_server_without_ranges_that_breaks_at_one_place(serving: FakeIndex, tmp_path: Path) -> None:
    serving.ranges, serving.cut = False, [200_000, 100_000] * 20
    with pytest.raises(FetchError, match="broke off"):
        fetched(serving.client(attempts=3), tmp_path / "wheel")
    assert len(serving.wheel_requests()) == 4


def test_bytes_that_are_not_the_promised_ones(serving: FakeIndex, tmp_path: Path) -> None:
    serving.hash_of = lambda name, data: "0" * 64
    with pytest.raises(FetchError, match="arrived damaged twice"):
        fetched(serving.client(), tmp_path / "wheel")
    assert len(serving.wheel_requests()) == 2
    assert not (tmp_path / "wheel").exists()


@pytest.mark.parametrize("have", [BODY[:1000], b"x" * 1000, b"x" * len(BODY), b"x" * (len(BODY) + 5)])
def test_whatever_lies_there_already(serving: FakeIndex, tmp_path: Path, have: bytes) -> None:
    (tmp_path / "wheel").write_bytes(have)
    assert fetched(serving.client(), tmp_path / "wheel") == BODY


def test_more_bytes_than_there_can_be(serving: FakeIndex, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="larger than it can be"):
        fetched(serving.client(), tmp_path / "wheel", limit=LIMIT - 1)
    assert not (tmp_path / "wheel").exists()


@pytest.mark.parametrize(
    "page",
    [
        ("application/json", b"[]"),
        ("application/json", b"{"),
        ("application/json", b'{"files": [{"filename": 1}]}'),
        ("text/html", b"<html><a>log in</a>"),
        ("", b"\xff\x00"),
    ],
)
def test_page_that_is_no_index(serving: FakeIndex, monkeypatch: pytest.MonkeyPatch, page: tuple[str, bytes]) -> None:
    monkeypatch.setattr(serving, "page", lambda name: page)
    with pytest.raises(FetchError, match="cannot find package some-data") as caught:
        serving.client().find("some-data", "1.0")
    assert "\n" not in str(caught.value)


def test_certificates_that_are_not_there() -> None:
    settings = replace(PipSettings(timeout=5), indexes=("https://127.0.0.1:9/simple",), certificates="/no/bundle.pem")
    with pytest.raises(FetchError, match="no such file or directory"):
        PackageIndex(settings, attempts=1).find("some-data", "1.0")
