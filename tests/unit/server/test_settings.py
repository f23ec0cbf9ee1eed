"""Settings and keys: read from a file, compared without showing them, one memory each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forerun.errors import UsageError
from forerun.server.settings import Settings, read_keys
from forerun.server.tenants import Key, Keys, Tenant


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# of the team\n\nanna: sk-1\nsk-2\n")
    first, second = read_keys(path)
    assert (first.name, first.secret) == ("anna", "sk-1")
    assert second.secret == "sk-2"
    assert "sk-2" not in second.name
    assert "sk-1" not in repr(Settings(keys=(first, second)))


@pytest.mark.parametrize("text", ["", "# nothing\n", "anna: \n", "two words\n", "naïve\n"])
def test_a_file_without_a_good_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(UsageError, match="key"):
        read_keys(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_keys(tmp_path / "missing")


def test_each_key_has_a_memory_of_its_own_unless_they_share() -> None:
    keys = (Key.of("a", "anna"), Key.of("b", "ben"))
    separate = Keys(keys, separate=Settings(keys=keys).separate)
    anna, ben = separate.tenant("Bearer a"), separate.tenant("bearer  b ")
    assert anna == Tenant("anna", "key:anna")
    assert ben == Tenant("ben", "key:ben")
    shared = Keys(keys, separate=Settings(keys=keys, share_memory=True).separate)
    assert shared.tenant("Bearer a") == Tenant("anna", "")
    assert Keys(keys[:1], separate=Settings(keys=keys[:1]).separate).tenant("Bearer a") == Tenant("anna", "")


@pytest.mark.parametrize("header", ["", "a", "Basic a", "Bearer", "Bearer ab", "Bearer \udcff", "Bearer A"])
def test_other_keys_are_nobody(header: str) -> None:
    assert Keys((Key.of("a"),), separate=False).tenant(header) is None


def test_without_keys_nobody_is_asked() -> None:
    assert Keys((), separate=False).tenant("") == Tenant()


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70000},
        {"max_queue": -1},
        {"stall_timeout": 0.1},
        {"cors_origins": ("chat.example",)},
        {"cors_origins": ("https://chat.example/page",)},
        {"keys": (Key.of("a", "x"), Key.of("b", "x"))},
        {"keys": (Key.of("a", "x"), Key.of("a", "y"))},
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Settings(**wrong)
