"""A toy model that can chat."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun import build
from forerun.text.chat import ChatTemplate

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}\n{% endfor %}a: "


@pytest.fixture
def chatting_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy model with a chat template."""
    plain = build._toy()
    chatting = replace(plain, template=ChatTemplate(plain.tokenizer, TEMPLATE))
    monkeypatch.setattr(build, "_toy", lambda: chatting)
