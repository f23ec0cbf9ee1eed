"""The layers of the package: everything imports only from below, and siblings never import each other."""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping
from pathlib import Path

import pytest

import forerun

ROOT = Path(forerun.__file__).parent

# From the bottom up; parts on one line are siblings. `forerun/__init__.py` stands above all of them.
LAYERS = (
    ("errors", "minimal"),
    ("core", "confined"),
    ("weights", "models", "completion"),
    ("tokenizers",),
    ("drafters", "verifiers", "controllers", "backends", "text"),
    ("structured",),
    ("config",),
    ("engine",),
    ("cascade",),
    ("assembly",),
    ("answer",),
    ("asking",),
    ("llm",),
    ("server", "bench", "tune", "train", "integrations", "testing"),
    ("cli",),
    ("__main__",),
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


def modules() -> dict[str, Path]:
    """Every module by its full name; a package is called like its `__init__`, and a compiled one is its stub."""
    paths = [*ROOT.rglob("*.py"), *ROOT.rglob("*.pyi")]
    names = {path: ("forerun", *path.relative_to(ROOT).with_suffix("").parts) for path in paths}
    return {".".join(parts).removesuffix(".__init__"): path for path, parts in names.items()}


def imported_modules(source: str, known: Container[str]) -> set[str]:
    """Modules among `known` that a source names in its imports, also lazily or for types only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in inner}
    return {name for name in found if name in known}


def circles(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules from which imports lead back to themselves."""
    found = []
    for start in graph:
        reached, left = set[str](), [start]
        while left:
            new = graph[left.pop()] - reached
            reached |= new
            left += new
        if start in reached:
            found.append(start)
    return found


def test_no_module_leads_back_to_itself() -> None:
    known = modules()
    assert len(known) > 100
    graph = {
        name: imported_modules(path.read_text("utf-8"), known) if path.suffix == ".py" else set()
        for name, path in known.items()
    }
    assert circles(graph) == []


def test_a_circle_is_seen_whatever_its_length() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}, "e": {"a"}}) == ["b", "c", "d"]


def test_the_search_for_circles_sees_lazy_imports_and_packages() -> None:
    source = "def f():\n    from a.b import c\nfrom a import x\nimport a.d\nimport os\n"
    assert imported_modules(source, {"a", "a.b", "a.b.c", "a.d"}) == {"a", "a.b.c", "a.d"}


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
