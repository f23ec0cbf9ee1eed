"""pip's settings are read as pip reads them."""

from __future__ import annotations

import os
import ssl
import sys
from pathlib import Path

import pytest

from forerun.models import pip_settings
from forerun.models.pip_settings import PipSettings, default_index

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="places of configuration files")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which nothing is set and no configuration file exists."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "XDG_")) or name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(pip_settings, "SYSTEM_FILE", tmp_path / "etc" / "pip.conf")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def test_nothing_set() -> None:
    assert PipSettings.read() == PipSettings(indexes=(default_index() or "",))


def test_environment(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    (home / "wheels").mkdir()
    for name, value in {
        "PIP_INDEX_URL": "https://one/simple",
        "PIP_EXTRA_INDEX_URL": "https://two/simple\n https://one/simple",
        "PIP_FIND_LINKS": f"{home / 'wheels'} file://{home / 'wheels'} https://page {home / 'missing'}",
        "PIP_PROXY": "http://proxy:1",
        "PIP_CERT": "/bundle.pem",
        "PIP_CLIENT_CERT": "/client.pem",
        "PIP_TRUSTED_HOST": "one two",
        "PIP_DEFAULT_TIMEOUT": "77",
    }.items():
        monkeypatch.setenv(name, value)
    assert PipSettings.read() == PipSettings(
        indexes=("https://one/simple", "https://two/simple"),
        wheels=(home / "wheels", home / "wheels"),
        proxy="http://proxy:1",
        certificates="/bundle.pem",
        client_certificate="/client.pem",
        trusted_hosts=frozenset({"one", "two"}),
        timeout=77.0,
    )


def test_later_files_win_and_the_environment_last(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    places = [
        home / "xdg" / "pip" / "pip.conf",
        home / "etc" / "pip.conf",
        home / ".pip" / "pip.conf",
        home / ".config" / "pip" / "pip.conf",
        home / "venv" / "pip.conf",
        home / "named.conf",
    ]
    monkeypatch.setenv("PIP_CONFIG_FILE", str(home / "named.conf"))
    for i, place in enumerate(places):
        write(place, f"[global]\nindex_url = https://me:p%40ss@host{i}/simple\n")
        assert PipSettings.read().indexes == (f"https://me:p%40ss@host{i}/simple",)
    write(places[-1], "[global]\nindex-url = https://all/simple\n[download]\nindex-url = https://download/simple\n")
    assert PipSettings.read().indexes == ("https://download/simple",)
    monkeypatch.setenv("PIP_INDEX_URL", "https://environment/simple")
    assert PipSettings.read().indexes == ("https://environment/simple",)
    monkeypatch.setenv("PIP_INDEX_URL", "")
    assert PipSettings.read().indexes == ("https://download/simple",)


def test_section_of_the_command_wins_from_any_file(home: Path) -> None:
    write(home / "etc" / "pip.conf", "[download]\nindex-url = https://download/simple\n[install]\ntimeout = 9\n")
    write(home / "venv" / "pip.conf", "[global]\nindex-url = https://global/simple\ntimeout = 8\n")
    assert PipSettings.read() == PipSettings(indexes=("https://download/simple",), timeout=9.0)


def test_named_file_stands_in_for_the_users(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    write(home / ".config" / "pip" / "pip.conf", "[global]\ntimeout = 7\n")
    write(home / "named.conf", "[global]\nindex-url = https://named/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(home / "named.conf"))
    assert PipSettings.read() == PipSettings(indexes=("https://named/simple",))


def test_files_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    write(home / ".config" / "pip" / "pip.conf", "[global]\nindex-url = https://file/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert PipSettings.read().indexes == (default_index() or "",)


@pytest.mark.parametrize("text", ["no section = 1", "[global\n", "\udcff"])
def test_broken_file_is_passed_over(home: Path, text: str) -> None:
    path = home / ".config" / "pip" / "pip.conf"
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert PipSettings.read() == PipSettings(indexes=(default_index() or "",))


def test_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert PipSettings.read().indexes == ()
    monkeypatch.setenv("PIP_NO_INDEX", "false")
    assert PipSettings.read().indexes == (default_index() or "",)


def test_timeout_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_TIMEOUT", "soon")
    assert PipSettings.read().timeout == PipSettings().timeout


def test_uv_where_pip_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_INDEX_URL", "https://old/simple")
    assert PipSettings.read().indexes == ("https://old/simple",)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv/simple")
    assert PipSettings.read().indexes == ("https://uv/simple",)
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip/simple")
    assert PipSettings.read().indexes == ("https://pip/simple",)


def test_certificates_are_checked_unless_the_host_is_trusted() -> None:
    settings = PipSettings(trusted_hosts=frozenset({"mine"}))
    assert settings.tls("other").verify_mode is ssl.CERT_REQUIRED
    assert settings.tls("other").check_hostname
    assert settings.tls("mine").verify_mode is ssl.CERT_NONE
    with pytest.raises(OSError, match="No such file"):
        PipSettings(certificates="/no/such/bundle.pem").tls("other")
