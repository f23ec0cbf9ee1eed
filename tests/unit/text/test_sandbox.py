"""What templates may rely on, and what they may not do."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from forerun.errors import ModelFileError, PromptError
from forerun.text.sandbox import Sandboxed

CHATML = (
    "{% for message in messages %}\n"
    "    {{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
USER = [{"role": "user", "content": "hi"}]


def render(source: str, **variables: Any) -> str:
    return Sandboxed(source).render({"messages": USER, "add_generation_prompt": True} | variables)


def test_blocks_are_trimmed_and_left_stripped() -> None:
    assert render(CHATML) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n".replace(
        "<|im_start|>user", "    <|im_start|>user"
    ).replace("<|im_end|>\n<", "<|im_end|>\n\n<")
    assert render("  {% if true %}\n  x\n  {% endif %}\ny") == "  x\ny"


def test_json_is_written_as_transformers_writes_it() -> None:
    value = {"b": "<é> & 'x'", "a": [1, None, True]}
    assert render("{{ x | tojson }}", x=value) == json.dumps(value, ensure_ascii=False)
    assert render("{{ x | tojson(indent=2) }}", x=value) == json.dumps(value, ensure_ascii=False, indent=2)
    assert render("{{ x | tojson(sort_keys=true, ensure_ascii=true) }}", x=value) == json.dumps(value, sort_keys=True)
    assert render("{{ x | tojson(separators=(',', ':')) }}", x=[1, 2]) == "[1,2]"


def test_what_templates_may_call() -> None:
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}") == "02"
    assert render("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c") == "abhic"
    assert render("{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}") == "2"
    with pytest.raises(PromptError, match="refuses this conversation: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 'x' * 10000000000 }}",
        "{{ 2 ** 100000000 }}",
        "{{ ('x' * 100000) * 100000 }}",
        "{{ [0] * 10000000 }}",
        "{{ raise_exception.__globals__.keys() }}",
    ],
)
def test_what_templates_must_not_do(source: str) -> None:
    with pytest.raises((ModelFileError, PromptError), match="chat template"):
        render(source)


@pytest.mark.parametrize(
    "source",
    ["{{ x", "{% for %}", "{% unknown %}", "{{ x | nofilter }}", "{{ 9" + "9" * 5000 + " }}", "{{ " + "(" * 5000],
)
def test_templates_that_are_not_valid(source: str) -> None:
    with pytest.raises(ModelFileError, match="chat template is not valid"):
        Sandboxed(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].a.b }}",
        "{{ 1 // 0 }}",
        "{{ range(10 ** 9) }}",
        "{% include 'x' %}",
        "{{ namespace(1, 2) }}",
        "{{ 'x'.encode().decode('no such') }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for x in range(2) recursive %}{{ loop(range(2)) }}{% endfor %}",
    ],
)
def test_templates_that_fail(source: str) -> None:
    with pytest.raises(PromptError, match="cannot render"):
        render(source)


def test_words_and_names_are_read_without_running_it() -> None:
    source = (
        "{% for m in messages %}{% if m['role'] in ['system', 'ipython'] %}{{ raise_exception('a sentence of more than "
        "thirty-two characters') }}{% endif %}observation{% endfor %}{{ 1 // 0 }}{{ tools }}"
    )
    template = Sandboxed(source)
    assert template.strings == {"role", "system", "ipython"}
    assert {"messages", "tools"} <= template.names
    assert "documents" not in template.names
