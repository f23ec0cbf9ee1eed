"""What the whole suite shares: the command line run in this process, real models, and hypothesis without a clock."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

Cli = Callable[..., "Ran"]


@dataclass(frozen=True)
class Ran:
    """How a command line ended and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value that was printed."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[Any]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


@contextmanager
def logging_as_it_was() -> Iterator[None]:
    """What a server writes its log with is gone afterwards: later tests see what is logged in their own way."""
    loggers = [logging.getLogger(name) for name in ("forerun", "uvicorn", "uvicorn.access", "uvicorn.error")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    try:
        yield
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `forerun ARGUMENTS...` in this process; `stdin` is what it can read."""

    def run(*arguments: str, stdin: str | bytes = b"") -> Ran:
        from forerun.cli.guard import run as guarded

        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        capsys.readouterr()
        with logging_as_it_was():
            status = guarded(arguments)
        wrote = capsys.readouterr()
        return Ran(status, wrote.out, wrote.err)

    return run


@pytest.fixture(scope="session")
def catalogue_is_here() -> None:
    """Every model of the catalogue in the cache: no test has to wait for a pull, or counts what one says."""
    from forerun.models import CATALOGUE, resolve

    for entry in CATALOGUE:
        resolve(entry.name)


@pytest.fixture(autouse=True)
def models_before_tests(request: pytest.FixtureRequest) -> None:
    """Tests marked `models` begin with all models pulled."""
    if request.node.get_closest_marker("models") is not None:
        request.getfixturevalue("catalogue_is_here")


def pytest_configure() -> None:
    # Machines are shared and slow at times: an example that takes long is no failure.
    try:
        from hypothesis import settings
    except ImportError:
        return
    settings.register_profile("forerun", deadline=None)
    settings.load_profile("forerun")
