"""What is kept between runs: recycling's matrix unless told otherwise, texts only when asked; never in the way."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from forerun.drafters.recycling import Matrix, RecyclingDrafter
from forerun.models import Cache, find
from tests.conftest import Cli

RUN = ("generate", "Count from one to ten.", "--max-tokens", "12")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> str:
    """A model file, and an empty home."""
    assert cli("pull", "smollm2-135m").status == 0
    found = Cache().get(find("smollm2-135m"))
    assert found is not None
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    return str(found)


@pytest.mark.models
def test_the_matrix_is_kept_and_found_again(cli: Cli, tmp_path: Path, model: str) -> None:
    told = (*RUN, "--model", model, "--draft", "recycling", "--num-speculative-tokens", "4", "--json")
    first, second = cli(*told), cli(*told)
    assert first.json["token_ids"] == second.json["token_ids"]
    (file,) = (tmp_path / "memory").glob("*.matrix.npz")
    assert len(Matrix.load(file)) > 5
    accepted = [ran.json["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] for ran in (first, second)]
    assert accepted[1] > accepted[0]


@pytest.mark.models
def test_what_is_not_to_be_remembered_is_not(cli: Cli, tmp_path: Path, model: str) -> None:
    told = (*RUN, "--model", model, "--draft", "suffix+recycling", "--num-speculative-tokens", "4")
    assert cli(*told, "--remember", "nothing").status == 0
    assert not (tmp_path / "memory").exists()
    assert cli(*told, "--remember", "texts").status == 0
    assert [path.suffixes[-2:] for path in sorted((tmp_path / "memory").glob("*.history.npz"))] == [
        [".history", ".npz"]
    ]


def test_an_unknown_thing_to_remember(cli: Cli) -> None:
    ran = cli(*RUN, "--model", "toy", "--remember", "everything")
    assert ran.status == 2
    assert "nothing, matrix, texts" in ran.err


def test_a_place_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "memory").write_text("a file where the folder should be")
    drafter = RecyclingDrafter(10, path=tmp_path / "memory" / "matrix.npz")
    drafter.shared.matrix.put(1, [2], [1.0])
    with caplog.at_level(logging.WARNING, logger="forerun"):
        drafter.close()
    assert "could not be written" in caplog.text


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "matrix.npz"
    drafter = RecyclingDrafter(10, path=path)
    drafter.close()
    assert not path.exists()
    drafter.shared.matrix.put(1, [2], [1.0])
    drafter.close()
    again = RecyclingDrafter(10, Matrix.load(path), path=path)
    path.unlink()
    again.close()
    assert not path.exists()
