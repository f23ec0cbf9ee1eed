"""What follows a draft model's name is taken off from the right, and what is no option is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.assembly.draft_options import DraftOptions
from forerun.errors import UsageError


@pytest.mark.parametrize(
    ("argument", "parsed"),
    [
        ("name", DraftOptions("name")),
        ("name@w4", DraftOptions("name", "w4")),
        ("name@head=32k", DraftOptions("name", None, "32k")),
        ("name@w8@head=ids.json", DraftOptions("name", "w8", "ids.json")),
        ("name@head=500@w4", DraftOptions("name", "w4", "500")),
        ("org/name@w4", DraftOptions("org/name", "w4")),
    ],
)
def test_options(argument: str, parsed: DraftOptions) -> None:
    assert DraftOptions.parse(argument) == parsed


@pytest.mark.parametrize(
    "argument", ["name@w3", "name@", "name@head=", "name@w4@w4", "name@w4@w8", "name@head=1@head=2"]
)
def test_what_is_no_option(argument: str) -> None:
    with pytest.raises(UsageError, match="is no option of a draft model, or is there twice"):
        DraftOptions.parse(argument)


def test_an_at_sign_in_the_name_of_a_file_that_is_there_is_a_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "model@w4"
    file.touch()
    assert DraftOptions.parse(str(file)) == DraftOptions(str(file))
    assert DraftOptions.parse(f"{file}@w8") == DraftOptions(str(file), "w8")
