"""Whatever a template does, it takes bounded time and memory; what honest ones do is nowhere near the bounds."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from forerun.confined.worker import Limits
from forerun.errors import ForerunError, ModelFileError, PromptError
from forerun.models import resolve
from forerun.text.template import Template
from forerun.tokenizers.loading import load_tokenizer

# Less than what is allowed elsewhere, so that the tests end sooner.
SHORT = Limits(seconds=0.5, memory=1 << 30, answer=4 << 20)
SMALL = Limits(seconds=60, memory=128 << 20, answer=4 << 20)
LOOP = "{% for i in range(100) %}"
ENDLESS = {
    "nested loops": "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "lists in lists as text": "{% set ns = namespace(x=[1]) %}"
    + LOOP
    + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "lists in lists compared": "{% set ns = namespace(x=[1], y=[1]) %}"
    + LOOP
    + "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "lipsum": "{{ lipsum(n=100000000) }}",
    "a number": "{{ 1.5 | round(1000000000, 'ceil') }}",
}
DOUBLED = "{% set ns = namespace(x='a' * 1000) %}" + LOOP + "{% set ns.x = DOUBLE %}{% endfor %}"
GROWING = {
    "plus": DOUBLED.replace("DOUBLE", "ns.x + ns.x"),
    "tilde": DOUBLED.replace("DOUBLE", "ns.x ~ ns.x"),
    "join": DOUBLED.replace("DOUBLE", "[ns.x, ns.x] | join"),
    "method join": DOUBLED.replace("DOUBLE", "ns.x.join(['', '', ''])"),
    "replace": DOUBLED.replace("DOUBLE", "ns.x.replace('a', 'aa')"),
    "replace filter": DOUBLED.replace("DOUBLE", "ns.x | replace('a', 'aa')"),
    "format": DOUBLED.replace("DOUBLE", "'{0}{0}'.format(ns.x)"),
    "percent": DOUBLED.replace("DOUBLE", "'%s%s' % (ns.x, ns.x)"),
    "indent": DOUBLED.replace("DOUBLE", "ns.x | indent(ns.x | length, true)"),
    "lists": DOUBLED.replace("'a' * 1000", "[1]").replace("DOUBLE", "ns.x + ns.x"),
    "width of percent": "{{ '%1000000000d' % 1 }}",
    "width of format": "{{ '{:>3000000000}'.format(1) }}",
    "width of center": "{{ 'x' | center(3000000000) }}",
    "width of ljust": "{{ 'x'.ljust(3000000000) }}",
    "zeros": "{{ 'x'.zfill(3000000000) }}",
    "tabs": "{{ '\t'.expandtabs(2000000000) }}",
    "indentation of JSON": "{{ [1] | tojson(indent=3000000000) }}",
    "batch": "{{ [1] | batch(1000000000, 0) | list }}",
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "of", lambda _: SHORT)


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.usefixtures("short")
def test_what_would_never_end_is_ended(source: str) -> None:
    with pytest.raises(ModelFileError, match=r"the model's chat template takes more than 0\.5 s of.*ask without it"):
        Template(source).render({})


@pytest.mark.skipif(sys.platform != "linux", reason="no other system limits the memory of a process")
@pytest.mark.parametrize("source", GROWING.values(), ids=GROWING)
def test_what_would_fill_the_memory_does_not(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "of", lambda _: SMALL)
    with pytest.raises(ModelFileError, match=r"the model's chat template takes more than 128 MB of memory"):
        Template(source).render({})


@pytest.mark.usefixtures("short")
def test_a_text_without_end_is_not_passed_on() -> None:
    with pytest.raises(ModelFileError, match=r"the model's chat template writes more than 4 MB"):
        Template("{% for i in range(90000) %}{{ x }}{% endfor %}").render({"x": "x" * 100})


def test_a_template_that_is_too_much_to_compile() -> None:
    for source, what in (
        ("x" * 200_001, "more than 200000"),
        ("{% if x %}" * 500 + "{% endif %}" * 500, "not valid"),
    ):
        with pytest.raises(ModelFileError, match=f"the model's chat template .*{what}"):
            Template(source).render({})


def test_after_one_conversation_too_much_the_next_is_rendered(short: None) -> None:
    template = Template("{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}{{ n }}")
    assert template.render({"n": 1}) == "1"
    with pytest.raises(ModelFileError, match="processor time"):
        template.render({"n": 90_000})
    assert template.render({"n": 2}) == "2"


def test_it_is_compiled_when_it_is_first_used() -> None:
    broken = Template("{{ x")
    broken.start()
    for _ in range(2):
        with pytest.raises(ModelFileError, match="chat template is not valid"):
            broken.render({})
        with pytest.raises(ModelFileError, match="chat template is not valid"):
            broken.strings  # noqa: B018
    unused = Template("{{ x")
    assert "_worker" not in vars(unused)


def test_where_no_process_can_be_started_rendering_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    template = Template("x")
    template.start()
    with pytest.raises(ForerunError, match="cannot be started"):
        template.render({})


def test_what_it_says_of_itself_and_of_a_conversation() -> None:
    template = Template(
        "{% if x == 'ipython' %}{{ raise_exception('\x1b[2J' ~ x) }}{% endif %}{{ x }}|{{ y | tojson }}"
    )
    assert "ipython" in template.strings
    assert template.names >= {"x", "y"}
    assert template.render({"x": "é\udc80", "y": {"a": (1, 2)}}) == 'é\udc80|{"a": [1, 2]}'
    with pytest.raises(PromptError, match=r"refuses this conversation: \\x1b\[2Jipython$"):
        template.render({"x": "ipython"})
    with pytest.raises(PromptError, match="holds a value of type object"):
        template.render({"x": object()})


@pytest.fixture(params=["smollm2-135m", "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"])
def honest(request: pytest.FixtureRequest) -> Template:
    source = load_tokenizer(resolve(request.param)).chat_template
    assert source is not None
    return Template(source)


@pytest.mark.models
def test_honest_templates_need_a_tenth_of_the_bounds(honest: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred messages of ten thousand characters, and a hundred tools with large schemas."""
    described = {"type": "string", "description": "words " * 20, "enum": ["a", "b", "c"]}
    schema = {"type": "object", "properties": {f"p{i}": described for i in range(20)}, "required": ["p1"]}
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "description": "does " * 10, "parameters": schema}}
        for i in range(100)
    ]
    call = {"type": "function", "function": {"name": "f1", "arguments": {"p1": "x"}}}
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for _ in range(50):
        messages += [
            {"role": "user", "content": "é" * 10_000},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": json.dumps({"result": "日" * 5_000})},
            {"role": "assistant", "content": "a" * 10_000},
        ]
    full = Limits.of

    def tenth(size: int) -> Limits:
        limits = full(size)
        return Limits(limits.seconds / 10, limits.memory // 10, limits.answer // 10)

    monkeypatch.setattr(Limits, "of", tenth)
    text = honest.render({"messages": messages, "tools": tools, "add_generation_prompt": True})
    assert text.count("é") == 500_000
