"""A toy model that can chat."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.assembly import Assembly, build
from forerun.config import Config
from forerun.text.chat import ChatTemplate

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}\n{% endfor %}a: "


@pytest.fixture
def chatting_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is built gets a chat template."""

    def with_template(config: Config) -> Assembly:
        assembly = build(config)
        return replace(assembly, template=ChatTemplate(assembly.tokenizer, TEMPLATE))

    monkeypatch.setattr("forerun.llm.build", with_template)
