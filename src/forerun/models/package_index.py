"""A client of the Python package index that fetches one wheel and resumes by byte range.

The simple repository API: project pages as JSON (PEP 691) or HTML (PEP 503), file hashes from either. What arrives is
held against the index's hash here; what it must contain is pinned by the catalogue and checked by the caller.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import netrc
import re
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from forerun.errors import FetchError
from forerun.models.cache import BLOCK
from forerun.models.pip_settings import PipSettings

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
KEPT = "what arrived is kept, so pull again to go on from there"

# What a connection that breaks can raise while it is opened or read (urllib's own errors are OSErrors too).
BROKEN = (OSError, http.client.HTTPException)


@dataclass(frozen=True)
class IndexFile:
    """One file an index offers; sha256 is None where the index does not say."""

    name: str
    url: str
    sha256: str | None


class _BrokenOffError(Exception):
    """The connection broke or the server is busy; trying again may help."""


@dataclass
class PackageIndex:
    """Fetches wheels from wherever the user's pip settings point.

    attempts: how often in a row a download may break without a byte of progress. wait: seconds before the second
    attempt, doubled for each further one.
    """

    settings: PipSettings = field(default_factory=PipSettings.read)
    attempts: int = 4
    wait: float = 0.5

    def find(self, package: str, version: str) -> IndexFile:
        """The pure-Python wheel of `package` at `version`; FetchError says where it was looked for and what was said."""
        for folder in self.settings.wheels:
            for path in folder.iterdir():
                if _is_wheel_of(path.name, package, version):
                    return IndexFile(path.name, path.resolve().as_uri(), None)
        said = []
        for index in self.settings.indexes:
            try:
                files = self._project(index, package)
            except FetchError as error:
                said.append(str(error))
                continue
            for file in files:
                if _is_wheel_of(file.name, package, version):
                    return file
            said.append(f"{_shown(index)} has no wheel of it")
        looked = "; ".join(said) or "pip is set to use no index (no-index)"
        raise FetchError(f"cannot find package {package} {version}: {looked}; check the network and pip's settings")

    def fetch(self, file: IndexFile, to: Path, limit: int, report: Callable[[int, int], None]) -> None:
        """Bring `file` to `to`, going on after the bytes already there; `report(bytes so far, bytes in all)`.

        Raises FetchError when the connection keeps breaking, when more than `limit` bytes come, or when the bytes are
        not those the index promised twice in a row; OSError when they cannot be written.
        """
        for fresh in (False, True):
            if fresh:
                to.unlink(missing_ok=True)
            self._download(file, to, limit, report)
            if file.sha256 is None or _sha256(to) == file.sha256:
                return
        to.unlink(missing_ok=True)
        raise FetchError(f"{file.name} arrived damaged twice (its SHA-256 is not the index's); try again later")

    def _download(self, file: IndexFile, to: Path, limit: int, report: Callable[[int, int], None]) -> None:
        failures, furthest = 0, _length(to)
        while True:
            try:
                self._stream(file, to, limit, report)
                return
            except _BrokenOffError as broken:
                failures = 0 if _length(to) > furthest else failures + 1
                furthest = max(furthest, _length(to))
                if failures >= self.attempts:
                    raise FetchError(f"download of {file.name} broke off: {broken}; {KEPT}") from broken
                time.sleep(self.wait * 2 ** max(failures - 1, 0))

    def _stream(self, file: IndexFile, to: Path, limit: int, report: Callable[[int, int], None]) -> None:
        """One connection: from the bytes that `to` has to the end."""
        have = _length(to)
        try:
            response = self._open(file.url, {"Range": f"bytes={have}-"} if have else {})
        except urllib.error.HTTPError as error:
            if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise _http_error(file.name, error) from error
            error.close()
            return  # nothing comes after the bytes that are here; whether they are right is for the hashes to say
        except BROKEN as error:
            raise _BrokenOffError(_why(error)) from error
        with response:
            start, total = _content_range(response.headers)
            resumed = response.status == http.client.PARTIAL_CONTENT and start == have
            if not resumed:
                have, total = 0, int(response.headers.get("Content-Length") or 0)
            with open(to, "ab" if resumed else "wb") as out:
                while block := _read(response):
                    out.write(block)
                    have += len(block)
                    if have > limit:
                        break
                    report(have, max(total, have))
        if have > limit:
            to.unlink()
            raise FetchError(f"{file.name} was refused: larger than it can be ({limit:,} bytes); check pip's settings")
        if have < total:
            raise _BrokenOffError(f"{have:,} of {total:,} bytes came")

    def _project(self, index: str, package: str) -> list[IndexFile]:
        """The files of a project's page; FetchError when there is none to be had."""
        url = f"{index.rstrip('/')}/{package}/"
        if urlsplit(url).scheme == "file":
            url += "index.html"
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(self.wait * 2 ** (attempt - 1))
            try:
                with self._open(url, {"Accept": ACCEPT}) as response:
                    kind = response.headers.get("Content-Type", "")
                    return _parse_page(response.read(), kind, response.url)
            except urllib.error.HTTPError as error:
                problem = _http_error(_shown(index), error)
            except BROKEN as error:
                problem = _BrokenOffError(f"{_shown(index)} cannot be reached ({_why(error)})")
            if isinstance(problem, FetchError) or url.startswith("file:"):
                break
        raise FetchError(str(problem))

    def _open(self, url: str, headers: dict[str, str]) -> Any:
        """Open a URL with the user's proxy, certificates and credentials; urllib's errors are the caller's."""
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        request = urllib.request.Request(urlunsplit(parts._replace(netloc=host)), headers=headers)
        request.add_header("User-Agent", "forerun")
        if login := self._login(url):
            # Not passed on when the server redirects elsewhere.
            request.add_unredirected_header("Authorization", f"Basic {b64encode(login.encode()).decode()}")
        handlers: list[urllib.request.BaseHandler] = []
        if parts.scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=self.settings.tls(parts.hostname or "")))
        if self.settings.proxy:
            proxies = {"http": self.settings.proxy, "https": self.settings.proxy}
            handlers.append(urllib.request.ProxyHandler(proxies))
        return urllib.request.build_opener(*handlers).open(request, timeout=self.settings.timeout)

    def _login(self, url: str) -> str | None:
        """`user:password` from the URL, from an index on the same host, or from the user's netrc."""
        wanted = urlsplit(url)
        for known in map(urlsplit, (url, *self.settings.indexes)):
            if known.username and (known.scheme, known.hostname, known.port) == (
                wanted.scheme,
                wanted.hostname,
                wanted.port,
            ):
                return f"{unquote(known.username)}:{unquote(known.password or '')}"
        try:
            found = netrc.netrc().authenticators(wanted.hostname or "")
        except (OSError, netrc.NetrcParseError):
            return None
        return f"{found[0]}:{found[2]}" if found else None


class _Anchors(HTMLParser):
    """Links of a PEP 503 page: address and text."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self._href = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._href = dict(attrs).get("href") or "" if tag == "a" else ""

    def handle_data(self, data: str) -> None:
        if self._href and data.strip():
            self.links.append((self._href, data.strip()))
            self._href = ""


def _parse_page(body: bytes, kind: str, base: str) -> list[IndexFile]:
    try:
        if "json" in kind:
            files = json.loads(body)["files"]
            return [IndexFile(f["filename"], urljoin(base, f["url"]), f["hashes"].get("sha256")) for f in files]
        page = _Anchors()
        page.feed(body.decode("utf-8", "replace"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FetchError(f"{_shown(base)} answered with something that is not a package index") from error
    found = []
    for href, text in page.links:
        url, _, fragment = urljoin(base, href).partition("#")
        digest = re.fullmatch("sha256=([0-9a-f]{64})", fragment)
        found.append(IndexFile(text, url, digest[1] if digest else None))
    return found


def _is_wheel_of(filename: str, package: str, version: str) -> bool:
    fields = filename.removesuffix(".whl").split("-")
    normalized = re.sub(r"[-_.]+", "-", fields[0]).lower()
    return filename.endswith("-none-any.whl") and normalized == package and fields[1:2] == [version]


def _http_error(what: str, error: urllib.error.HTTPError) -> Exception:
    error.close()
    if error.code in (408, 425, 429) or error.code >= 500:
        return _BrokenOffError(f"{what} answered {error.code} {error.reason}")
    if error.code in (401, 403, 407):
        return FetchError(f"{what} wants other credentials ({error.code} {error.reason})")
    return FetchError(f"{what} answered {error.code} {error.reason}")


def _read(response: Any) -> bytes:
    try:
        data: bytes = response.read(BLOCK)
    except BROKEN as error:
        raise _BrokenOffError(_why(error)) from error
    return data


def _content_range(headers: Any) -> tuple[int, int]:
    """Start and total of `Content-Range: bytes 5-9/10`; -1 and 0 where not said."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range") or "")
    return (int(found[1]), int(found[2])) if found else (-1, 0)


def _why(error: BaseException) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(getattr(cause, "strerror", None) or cause or type(error).__name__).strip().lower()


def _shown(url: str) -> str:
    """A URL without what must not be printed."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
