"""A toy model and a server over it, shared by the tests that do not change it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forerun.llm import LLM
from tests.serving import Client, serving, toy

pytest.importorskip("fastapi")


@pytest.fixture(scope="package")
def llm() -> Iterator[LLM]:
    with toy(keep_prefixes=8, other_drafts=["ngram"]) as model:
        yield model


@pytest.fixture(scope="package")
def client(llm: LLM) -> Iterator[Client]:
    with serving(llm) as found:
        yield found
