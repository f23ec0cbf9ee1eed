"""A toy model that can chat."""

from __future__ import annotations

import pytest

from forerun.build import sources
from forerun.text.chat import ChatTemplate

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}\n{% endfor %}a: "


@pytest.fixture
def chatting_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy model with a chat template."""
    plain = sources._toy()
    template = ChatTemplate(plain.tokenizer, TEMPLATE)
    monkeypatch.setattr(sources, "_toy", lambda: sources.Source("toy", plain.tokenizer, template, lambda: plain.model))
