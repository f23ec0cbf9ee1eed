"""The code of the tutorial and of "Adding a part" runs as it stands, and the tutorial's plug-in is found by name."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import Cli

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL, EXTENDING = DOCS / "drafter-tutorial.md", DOCS / "extending.md"
ASK = ("generate", "the drafter runs ahead and ", "--backend", "toy", "--max-tokens", "40")


def code(*without: str, page: Path = TUTORIAL) -> str:
    """The Python on a page, but for some sections; other lines are empty, so that errors show where they are."""
    kept, inside, section = [], False, ""
    for line in page.read_text("utf-8").split("\n"):
        section = line if line.startswith("## ") and not inside else section
        inside = inside and line != "```"
        kept.append(line if inside and section not in without else "")
        inside = inside or line == "```python"
    return "\n".join(kept)


PLUGIN = code("## Trying it", "## The contract")


def test_the_code_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    page = ModuleType("tutorial")
    sys.modules["tutorial"] = page
    try:
        exec(compile(code(), str(TUTORIAL), "exec"), page.__dict__)
        for check in page.CHECKS:
            page.test_promise(check)
    finally:
        del sys.modules["tutorial"]
    assert "propos" in capsys.readouterr().out


def test_the_controller_of_the_other_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code(page=EXTENDING), str(EXTENDING), "exec"), {"__name__": "extending"})
    assert "steps without" in capsys.readouterr().out


def plugin(
    folder: Path, body: str, entry: str = "markov = forerun_markov:make", package: str = "forerun-markov"
) -> None:
    """Put a package with an entry point into a folder, as pip would."""
    name = package.replace("-", "_")
    (folder / f"{name}.py").write_text(body, "utf-8")
    about = folder / f"{name}-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n", "utf-8")
    (about / "entry_points.txt").write_text(f"[forerun.drafters]\n{entry}\n", "utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("forerun_markov", "other_markov"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_the_plug_in_is_a_name_like_any_other(cli: Cli, folder: Path) -> None:
    plugin(folder, PLUGIN)
    plain = cli(*ASK, "--draft", "none", "--json").json
    for draft in ("markov", "markov:argument", "suffix+markov", "markov+none"):
        ran = cli(*ASK, "--draft", draft, "--json")
        assert ran.status == 0, ran.err
        assert (ran.json["draft"], ran.json["text"]) == (draft, plain["text"])
        assert ran.json["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
    unknown = cli(*ASK, "--draft", "markof").err
    assert "known: none, ngram" in unknown
    assert "Did you mean markov?" in unknown


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import nothing_of_that_name\n", "cannot be loaded (ModuleNotFoundError"),
        ("make = 3\n", "is int, not a function"),
        ("def make(host):\n    raise KeyError('x')\n", "failed to make the drafter 'markov' (KeyError: 'x')"),
        ("def make(host):\n    return 7\n", "int has no name, needs, open, propose"),
        (
            "from forerun.errors import UsageError\ndef make(host):\n    raise UsageError(f'{host.argument} is wrong.')\n",
            "markov (plug-in forerun-markov): much is wrong.",
        ),
    ],
    ids=["import", "no function", "raises", "no drafter", "refuses"],
)
def test_errors_name_the_plug_in(cli: Cli, folder: Path, body: str, words: str) -> None:
    plugin(folder, body)
    ran = cli(*ASK, "--draft", "markov:much")
    assert (ran.status, ran.out) == (2, "")
    assert "forerun-markov" in ran.err
    assert words in ran.err
    assert ran.err.count("\n") == 1


def test_two_plug_ins_of_one_name(cli: Cli, folder: Path) -> None:
    plugin(folder, PLUGIN)
    plugin(folder, PLUGIN, "markov = other_markov:make", "other-markov")
    ran = cli(*ASK, "--draft", "markov")
    assert ran.status == 2
    assert "two plug-ins bring a drafter 'markov', " in ran.err
    for package in ("forerun-markov", "other-markov"):
        assert package in ran.err


def test_names_of_its_own_are_never_replaced(cli: Cli, folder: Path) -> None:
    plugin(folder, "def make(host):\n    raise KeyError\n", "ngram = forerun_markov:make")
    assert cli(*ASK, "--draft", "ngram").status == 0


def test_only_models_are_drafted_for(cli: Cli, folder: Path) -> None:
    plugin(folder, PLUGIN)
    ran = cli(*ASK, "--draft", "markov<ngram")
    assert ran.status == 2
    assert "cannot draft for markov" in ran.err
