"""The pages of docs/ name everything that can be chosen, their code is code, and what they refer to exists."""

from __future__ import annotations

import ast
import html
import io
import json
import re
import tokenize
import tomllib
from pathlib import Path
from typing import Any

import pytest

from forerun.cascade.mixtures import RULES
from forerun.config import CONTROLLERS, VERIFIERS
from forerun.drafters.grammar import KNOWN, Composition, parse
from forerun.models.catalogue import CATALOGUE, Entry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = ROOT / "src" / "forerun"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
PAGE = html.unescape((DOCS / "drafting.md").read_text("utf-8"))
# The log names what there was.
PRESENT = [page for page in PAGES if page.name not in ("LOG.md", "CHANGELOG.md")]


def by_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def rows(section: str) -> list[list[str]]:
    """Cells of the table in a section, without its two head lines. A sign in <code> may be a bar."""
    body = PAGE.split(f"\n## {section}", 1)[1].split("\n## ")[0]
    lines = [re.sub(r"<code>(.*?)</code>", lambda c: f"`{c[1].replace('|', chr(0))}`", x) for x in body.splitlines()]
    table = [[cell.strip().replace("\0", "|") for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    return table[2:]


def names(section: str) -> set[str]:
    return {name for row in rows(section) for name in re.findall(r"`(\w+)[:`]", row[0])}


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_the_tables_are_complete() -> None:
    assert names("Drafters") == set(KNOWN)
    assert names("Verifiers") == set(VERIFIERS)
    assert names("Controllers") == set(CONTROLLERS)
    assert names("Cascades: other text") == {*RULES, "plain"}


@pytest.mark.parametrize("row", rows("Composition"), ids=lambda row: str(row[0]))
def test_the_examples_of_composition_parse(row: list[str]) -> None:
    spec = parse(row[2].strip("`"))
    assert isinstance(spec, Composition)
    assert spec.sign == row[0].strip("`")[1]


def test_brackets_are_where_the_page_says() -> None:
    assert "`a+b|c<d` is `(a+b)|(c<d)`" in PAGE
    assert parse("ngram+suffix|model:c<recycling") == parse("(ngram+suffix)|(model:c<recycling)")


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


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_links_lead_somewhere(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", prose(page)):
        if link == "cli.md":  # made when the site is
            continue
        target = page.parent / link if link else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PRESENT, ids=by_name)
def test_options_and_paths_exist(page: Path) -> None:
    from tests.unit.cli.test_layout import options

    text = page.read_text("utf-8")
    others = {
        "--build",
        "--parallel",
        "--output-on-failure",
        "--test-dir",
        "--no-tests",
        "--strict",
    }  # of cmake and mkdocs
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text)) - options() - others == set()
    for path in re.findall(r"`((?:src|tests|examples|benchmarks|docs)/[\w./-]*\w)`", text):
        assert "NAME" in path or (ROOT / path).exists(), path
    # A file is often named from its package on.
    for path in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|cpp|h|inc))`", text):
        known = (ROOT, ROOT / "src" / "forerun", ROOT / "src" / "forerun" / "native")
        assert "NAME" in path or any((folder / path).exists() for folder in known), path


@pytest.mark.parametrize("page", [DOCS / "core.md"], ids=by_name)
def test_files_of_the_core_exist(page: Path) -> None:
    native = ROOT / "src" / "forerun" / "native"
    for name in re.findall(r"`([a-z_*]+\.(?:cpp|h|inc))`", page.read_text("utf-8")):
        assert list(native.glob(name)) or list(native.glob(f"tests/{name}")), name
    written = re.findall(r"`([a-z_*]+(?:\.(?:cpp|h|inc))?|tests/)`", page.read_text("utf-8").split("## Weights")[0])
    sources = {path.name for pattern in ("*.cpp", "*.h", "*.inc") for path in native.glob(pattern)}
    sources -= {"checksum.h", "pass_kernels.cpp", *(path.name for path in native.glob("kernels_*.cpp"))}
    assert sources - {path.name for name in written for path in native.glob(name)} == set()


@pytest.mark.parametrize("page", PRESENT, ids=by_name)
def test_code_is_code(page: Path) -> None:
    for code in blocks(page, "python"):
        if "--8<--" not in code:
            ast.parse(code)
    for code in blocks(page, "json"):
        json.loads(code)
    for code in blocks(page, "toml"):
        tomllib.loads(code)


def commands() -> dict[str, Any]:
    """Every command by its words, such as `bench methods`."""
    from typer.main import get_command

    from forerun.cli.app import app

    found: dict[str, Any] = {}

    def add(command: Any, words: tuple[str, ...]) -> None:
        found[" ".join(words)] = command
        for name, sub in getattr(command, "commands", {}).items():
            add(sub, (*words, name))

    add(get_command(app), ())
    return found


@pytest.mark.parametrize("page", PRESENT, ids=by_name)
def test_commands_take_the_options_that_they_are_shown_with(page: Path) -> None:
    known = commands()
    shell = "\n".join(blocks(page, "console"))
    for line in re.findall(r"^\$ (?:[A-Z_]+=\S+ )*forerun ([a-z].*?)(?: {2,}#.*)?$", shell, re.MULTILINE):
        words = line.split()
        name = next(n for n in (" ".join(words[:2]), words[0]) if n in known)
        taken = {option for parameter in known[name].params for option in (*parameter.opts, *parameter.secondary_opts)}
        shown = re.findall(r"(?<!\S)--?[a-z][\w-]*", re.sub(r'"[^"]*"', "", line))
        assert set(shown) <= taken | {"--help"}, line


def prose_of(path: Path) -> str:
    """Docstrings and comments of a source."""
    source = path.read_text("utf-8")
    comments = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    return "\n".join([*docstrings, *comments])


def test_what_docstrings_refer_to_exists() -> None:
    """`core.protocols.Target`, with or without quotes, is a name of a module that is there."""
    packages = "|".join(path.parent.name for path in SOURCES.glob("*/__init__.py"))
    missing = []
    for path in sorted(SOURCES.rglob("*.py")):
        for package, module, name in re.findall(
            rf"\b(?<![./])({packages})\.([a-z_]+)(?:\.([A-Z]\w+))?", prose_of(path)
        ):
            file = SOURCES / package / f"{module}.py"
            if module in ("py", "cpp", "h") or (file.parent / module).is_dir():
                continue
            if not file.exists() or (
                name and not re.search(rf"\b(class {name}\b|{name}\b.*=)", file.read_text("utf-8"))
            ):
                missing.append(f"{path.relative_to(SOURCES)}: {package}.{module}.{name}")
    assert missing == []


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_the_readme_says_where_models_come_from(entry: Entry) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    row = next(line for line in readme.splitlines() if line.startswith(f"| `{entry.name}` |"))
    licensed = "Gemma terms" if entry.terms else entry.license
    for told in (entry.origin, licensed, entry.quantized, f"`{entry.sha256[:16]}`"):
        assert told in row
    named = [part.package for part in entry.parts]
    assert f"`{named[0]}`" in row
    assert len(named) == 1 or f"`{len(named)}`" in row
