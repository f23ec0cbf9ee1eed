"""What a user can ask for: one table of kinds and ranges, and None for the default of each."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import forerun
from forerun.config import Config
from forerun.errors import UsageError, quoted


def test_none_stands_for_the_default() -> None:
    names: dict[str, Any] = {field.name: None for field in fields(Config)}
    assert Config(**names) == Config()


def test_the_default_drafts_what_the_command_line_does() -> None:
    import inspect

    from forerun.cli.generate import generate

    assert Config().draft == inspect.signature(generate).parameters["draft"].default == "auto"
    with forerun.LLM.load("toy") as llm:
        assert llm.assembly.draft == "prediction+suffix+recycling"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"context": "64"}, "context is '64'; it must be a whole number"),
        ({"context": 64.0}, "context is 64.0; it must be a whole number"),
        ({"context": 0}, "context is 0; it must be at least 1"),
        ({"context": 2**40}, "it must be at most 2147483648"),
        ({"context": 10**5000}, "too large to show"),
        ({"threads": True}, "threads is True"),
        ({"threads": -1}, "at least 1"),
        ({"max_sequences": 0}, "at least 1"),
        ({"keep_prefixes": -1}, "at least 0"),
        ({"num_speculative_tokens": 10**9}, "at most 1024"),
        ({"prompt_lookup_min": 0}, "at least 1"),
        ({"model": 3}, "model is 3; it must be text"),
        ({"model": " "}, "model is ' '; it must be text"),
        ({"draft": ["ngram"]}, "draft is \\['ngram'\\]; it must be a name, or an object with"),
        ({"cascade": 0.5}, "cascade is 0.5"),
        ({"memory": 3}, "memory is 3; it must be a path"),
        ({"backend": 7}, "backend is 7"),
        ({"kv_dtype": "fp8"}, "unknown kv_dtype 'fp8'; known: fp16, fp32"),
        ({"quantize": "w3"}, "unknown quantize 'w3'; known: w8, w4"),
        ({"backend": "x" * 500}, r"xxx\.\.\.; known: auto"),
    ],
    ids=quoted,
)
def test_values_of_another_kind_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Config(**given)


def test_paths_may_be_texts_and_texts_paths() -> None:
    given: dict[str, Any] = {"memory": "texts.npz", "model": Path("a") / "model.gguf"}
    assert (Config(**given).memory, Config(**given).model) == (Path("texts.npz"), str(Path("a") / "model.gguf"))
