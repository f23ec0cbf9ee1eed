"""The layers of the package: everything imports only from below, and siblings never import each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import forerun

ROOT = Path(forerun.__file__).parent

# From the bottom up; parts on one line are siblings. `forerun/__init__.py` stands above all of them.
LAYERS = (
    ("errors", "minimal"),
    ("core",),
    ("weights", "models", "completion"),
    ("config", "tokenizers"),
    ("drafters", "verifiers", "controllers", "backends", "text"),
    ("engine",),
    ("assembly",),
    ("llm",),
    ("server", "bench", "tune", "train", "integrations", "testing"),
    ("cli",),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def parts() -> list[str]:
    """Packages and modules directly below `forerun`; folders without Python in them (native sources) are none."""
    modules = [path.stem for path in ROOT.glob("*.py") if path.stem != "__init__"]
    return sorted(modules + [path.parent.name for path in ROOT.glob("*/__init__.py")])


def files_of(part: str) -> list[Path]:
    single = ROOT / f"{part}.py"
    return [single] if single.exists() else sorted((ROOT / part).rglob("*.py"))


def imported_parts(source: str, package: tuple[str, ...]) -> set[str]:
    """Parts of forerun that a module imports anywhere in it, also lazily or for types only.

    package: of the module, such as ("forerun", "cli"), for relative imports.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            start = ".".join(filter(None, (base, node.module)))
            names |= {start} | {f"{start}.{alias.name}" for alias in node.names}
    split = [name.split(".") for name in names]
    return {words[1] for words in split if words[0] == "forerun" and len(words) > 1 and words[1] in LEVEL}


def allowed(part: str, imported: str) -> bool:
    return part == imported or LEVEL[imported] < LEVEL[part]


def test_every_part_has_its_layer() -> None:
    assert [part for part in parts() if part not in LEVEL] == []


@pytest.mark.parametrize("part", parts())
def test_a_part_imports_only_from_below(part: str) -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {other}"
        for path in files_of(part)
        for other in sorted(imported_parts(path.read_text("utf-8"), ("forerun", *path.relative_to(ROOT).parts[:-1])))
        if not allowed(part, other)
    ]
    assert found == []


def test_the_rule_itself_sees_each_way_to_import() -> None:
    source = (
        "import forerun.engine.engine\n"
        "def f():\n    from forerun.assembly import Config\n"
        "from forerun import drafters\n"
        "from .. import verifiers\nfrom ..text import stream\nfrom . import x\n"
    )
    found = imported_parts(source, ("forerun", "core"))
    assert found == {"engine", "assembly", "drafters", "verifiers", "text", "core"}
    assert not allowed("core", "engine")
    assert not allowed("drafters", "verifiers")
    assert allowed("engine", "drafters")
