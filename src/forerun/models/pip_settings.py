"""Where the user's package installer would look, and through what: pip's settings, read without pip.

Environment variables (`PIP_INDEX_URL`, ...) win over pip's configuration files, of which the one named last in
pip's documentation wins: global, user, virtual environment, `PIP_CONFIG_FILE`. uv's `UV_DEFAULT_INDEX` and
`UV_INDEX_URL` stand in where pip is told nothing. Proxies of the environment are urllib's own business.
"""

from __future__ import annotations

import configparser
import os
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path


def default_index() -> str | None:
    """The index that pip asks when it is told nothing, as pip itself has it; None where pip is not installed."""
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return None
    return str(PyPI.simple_url)


# Sections of pip's files that count here, the strongest last, whichever file they are in.
SECTIONS = ("global", "install", "download")
SYSTEM_FILE = Path("/etc/pip.conf")


@dataclass(frozen=True)
class PipSettings:
    """indexes: URLs in the order to ask them. wheels: local folders that may hold the packages. timeout: seconds."""

    indexes: tuple[str, ...] = ()
    wheels: tuple[Path, ...] = ()
    proxy: str | None = None
    certificates: str | None = None
    client_certificate: str | None = None
    trusted_hosts: frozenset[str] = frozenset()
    timeout: float = 30.0

    @classmethod
    def read(cls) -> PipSettings:
        """What the environment and the configuration files say now."""
        told = _configured() | _environment()
        main = told.get("index-url") or os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
        first = main or default_index()
        indexes = [*([first] if first else []), *told.get("extra-index-url", "").split()]
        if told.get("no-index", "").lower() in ("1", "true", "yes", "on"):
            indexes = []
        bundle = told.get("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        try:
            timeout = float(told.get("timeout") or told.get("default-timeout") or cls.timeout)
        except ValueError:
            timeout = cls.timeout
        return cls(
            indexes=tuple(dict.fromkeys(indexes)),
            wheels=tuple(path for link in told.get("find-links", "").split() if (path := _folder(link))),
            proxy=told.get("proxy") or None,
            certificates=bundle or None,
            client_certificate=told.get("client-cert") or None,
            trusted_hosts=frozenset(told.get("trusted-host", "").split()),
            timeout=timeout,
        )

    def tls(self, host: str) -> ssl.SSLContext:
        """How to check certificates of `host`: by the user's bundle, else the system's, else certifi's."""
        context = ssl.create_default_context(cafile=self.certificates)
        if self.certificates is None and not context.cert_store_stats()["x509_ca"] and not _has_system_folder():
            try:
                import certifi
            except ImportError:
                pass
            else:
                context.load_verify_locations(certifi.where())
        if self.client_certificate:
            context.load_cert_chain(self.client_certificate)
        if host in self.trusted_hosts:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _has_system_folder() -> bool:
    # OpenSSL reads a folder of certificates as it needs them, so that none are loaded says nothing.
    return ssl.get_default_verify_paths().capath is not None


def _folder(link: str) -> Path | None:
    path = Path(link.removeprefix("file://")).expanduser()
    return path if path.is_dir() else None


def _environment() -> dict[str, str]:
    """`PIP_EXTRA_INDEX_URL` is `extra-index-url`; empty values are as good as none."""
    names = {name: value for name, value in os.environ.items() if name.startswith("PIP_") and value}
    return {name.removeprefix("PIP_").lower().replace("_", "-"): value for name, value in names.items()}


def _configured() -> dict[str, str]:
    told: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for path in _configuration_files():
        # pip itself does without interpolation: percent signs are part of passwords.
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, "utf-8")
        except (OSError, configparser.Error, UnicodeDecodeError):
            continue
        for section in filter(parser.has_section, SECTIONS):
            told[section] |= {name.replace("_", "-"): value for name, value in parser.items(section)}
    return {name: value for section in SECTIONS for name, value in told[section].items()}


def _configuration_files() -> list[Path]:
    """Later ones win. A file named by the environment stands in for the user's own, as with pip."""
    named = os.environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return []
    home, config_home = Path.home(), os.environ.get("XDG_CONFIG_HOME")
    if sys.platform == "win32":
        shared = [Path(os.environ.get("PROGRAMDATA", "C:\\ProgramData")) / "pip" / "pip.ini"]
        users = [home / "pip" / "pip.ini", Path(os.environ.get("APPDATA", home)) / "pip" / "pip.ini"]
    else:
        folders = (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
        shared = [*(Path(folder) / "pip" / "pip.conf" for folder in reversed(folders)), SYSTEM_FILE]
        users = [home / ".pip" / "pip.conf", Path(config_home or home / ".config") / "pip" / "pip.conf"]
    if sys.platform == "darwin":
        support = Path("Library") / "Application Support" / "pip" / "pip.conf"
        shared, users = [Path("/") / support, *shared], [*users, home / support]
    site = Path(sys.prefix) / ("pip.ini" if sys.platform == "win32" else "pip.conf")
    return [*shared, site, Path(named)] if named and Path(named).is_file() else [*shared, *users, site]
