"""The pages of docs/ name everything that can be chosen, and their examples parse."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from forerun.config import CONTROLLERS, VERIFIERS
from forerun.core.mixtures import RULES
from forerun.drafters.grammar import KNOWN, parse

DOCS = Path(__file__).parents[2] / "docs"
PAGE = html.unescape((DOCS / "drafting.md").read_text("utf-8"))


def rows(section: str) -> list[list[str]]:
    """Cells of the table in a section, without its two head lines. A sign in <code> may be a bar."""
    body = PAGE.split(f"\n## {section}", 1)[1].split("\n## ")[0]
    lines = [re.sub(r"<code>(.*?)</code>", lambda c: f"`{c[1].replace('|', chr(0))}`", x) for x in body.splitlines()]
    table = [[cell.strip().replace("\0", "|") for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    return table[2:]


def names(section: str) -> set[str]:
    return {name for row in rows(section) for name in re.findall(r"`(\w+)[:`]", row[0])}


def test_the_tables_are_complete() -> None:
    assert names("Drafters") == set(KNOWN)
    assert names("Verifiers") == set(VERIFIERS)
    assert names("Controllers") == set(CONTROLLERS)
    assert names("Cascades: other text") == {*RULES, "plain"}


@pytest.mark.parametrize("row", rows("Composition"), ids=lambda row: str(row[0]))
def test_the_examples_of_composition_parse(row: list[str]) -> None:
    sign = row[0].strip("`")[1]
    assert f"sign='{sign}'" in repr(parse(row[2].strip("`")))


def test_brackets_are_where_the_page_says() -> None:
    written = "ngram,suffix+recycling>model:d<lookahead"
    assert parse(written) == parse("ngram,(suffix+(recycling>(model:d<lookahead)))")


def cells(page: str, section: str) -> set[str]:
    """What stands in backquotes in the first cells of a section's table."""
    body = page.split(f"\n## {section}", 1)[1].split("\n## ")[0]
    return {
        name for line in body.splitlines() if line.startswith("| `") for name in re.findall(r"`([^`]+)`", line[:40])
    }


def test_the_page_about_the_command_line_is_complete() -> None:
    from forerun.cli.commands import _COMMANDS
    from forerun.cli.prompts import KNOWN

    page = (DOCS / "command-line.md").read_text("utf-8")
    files = page.split("\n## Prompt files", 1)[1].split("\n## ")[0]
    assert set(re.findall(r"`([a-z_]+)`", files)) - {"error", "null"} == set(KNOWN)
    assert {name.split()[0] for name in cells(page, "Chat")} == {*_COMMANDS, "/exit"} - {"/save!"}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: str(page.name))
def test_the_options_and_links_of_every_page_exist(page: Path) -> None:
    from tests.unit.cli.test_layout import options

    text = page.read_text("utf-8")
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text)) - options() == set()
    for link in re.findall(r"\]\(([^)#:]+\.md)\)", text):
        assert (DOCS / link).exists(), link
