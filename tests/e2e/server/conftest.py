"""Servers over real models, one of each for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forerun.llm import LLM
from tests.serving import Client, serving

pytest.importorskip("fastapi")


@pytest.fixture(scope="package")
def smol() -> Iterator[Client]:
    with (
        LLM.load("smollm2-135m", other_drafts=["ngram"], keep_prefixes=16, remember="nothing") as llm,
        serving(llm, names=("gpt-4o-mini",)) as client,
    ):
        yield client


@pytest.fixture(scope="package")
def coder() -> Iterator[Client]:
    with LLM.load("qwen2.5-coder-0.5b", keep_prefixes=16, remember="nothing") as llm, serving(llm) as client:
        yield client
