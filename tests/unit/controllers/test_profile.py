"""Profiles: read back what was measured; damaged ones are set aside, never in the way."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from forerun.controllers.profile import Profile


def test_reads_what_was_written_for_the_same_parts_only(tmp_path: Path) -> None:
    profile = Profile(tmp_path / "p", "model", 7)
    assert profile.read() is None
    profile.write({1: 0.5, 8: 0.75})
    curve = Profile(tmp_path / "p", "model", 7).read()
    assert curve is not None
    assert curve.ratio(8) == 1.5
    assert Profile(tmp_path / "p", "model", 8).read() is None
    assert [path.suffix for path in (tmp_path / "p").iterdir()] == [".json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seconds": {}}', '{"seconds": {"1": -1}}', '{"seconds": {"x": 1}}'])
def test_a_damaged_profile_is_set_aside(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    profile = Profile(tmp_path, "model")
    profile.path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert profile.read() is None
    assert "damaged" in caplog.text
    assert not profile.path.exists()
    profile.write({1: 1.0})
    assert profile.read() is not None


def test_a_profile_says_what_it_is_of(tmp_path: Path) -> None:
    profile = Profile(tmp_path, "model", 7)
    profile.write({1: 1.0})
    assert json.loads(profile.path.read_text())["of"][1:] == ["model", "7"]


def test_a_profile_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    profile = Profile(tmp_path, "model")
    profile.path.mkdir()
    assert profile.read() is None
    assert profile.path.is_dir()
