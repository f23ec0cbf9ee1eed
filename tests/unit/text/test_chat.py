"""Chat templates: what they may rely on, what they may not do, and models without one."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from forerun.errors import ModelFileError, PromptError
from forerun.models import resolve
from forerun.text.chat import ChatTemplate, normalized, prompt_ids
from forerun.tokenizers.loading import load_tokenizer
from forerun.tokenizers.tokenizer import byte_tokenizer

TOKENIZER = byte_tokenizer()
CHATML = (
    "{% for message in messages %}\n"
    "    {{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> str:
    return ChatTemplate(TOKENIZER, source).render(USER if messages is None else messages, **variables)


def test_blocks_are_trimmed_and_left_stripped() -> None:
    assert render(CHATML) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n".replace(
        "<|im_start|>user", "    <|im_start|>user"
    ).replace("<|im_end|>\n<", "<|im_end|>\n\n<")
    assert render("  {% if true %}\n  x\n  {% endif %}\ny") == "  x\ny"


@pytest.mark.parametrize("content", [None, "", ..., []])
def test_content_may_be_missing(content: Any) -> None:
    message = {"role": "user"} if content is ... else {"role": "user", "content": content}
    assert render("[{{ messages[0]['content'] }}]", [message]) == "[]"
    assert render("[{{ messages[0].content + 'x' }}]", [message]) == "[x]"


def test_content_may_be_parts() -> None:
    parts = [{"type": "text", "text": "one"}, {"text": "two"}, "three"]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "one\ntwo\nthree"
    with pytest.raises(PromptError, match="message 0 has a part of type 'image_url': only text"):
        render("", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


def test_tool_calls_with_arguments_in_a_string() -> None:
    source = (
        "{% for c in messages[0].tool_calls %}{{ c.function.name }}:{{ c.function.arguments | tojson }};{% endfor %}"
    )

    def call(arguments: Any) -> list[dict[str, Any]]:
        calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]
        return [{"role": "assistant", "content": None, "tool_calls": calls}]

    assert render(source, call('{"a": "é", "b": [1]}')) == 'f:{"a": "é", "b": [1]};'
    assert render(source, call({"a": 1})) == 'f:{"a": 1};'
    assert render(source, call("not json")) == 'f:"not json";'
    assert render(source, call("[1]")) == 'f:"[1]";'
    assert render("{{ messages[0].tool_calls is defined }}", [USER[0] | {"tool_calls": None}]) == "False"
    original = call('{"a": 1}')
    normalized(original)
    assert original == call('{"a": 1}')


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
    assert render("{{ bos_token }}|{{ eos_token }}") == "|<|endoftext|>"
    assert render("{{ tools is none }}{{ documents is none }}{{ thinking }}", thinking=1) == "TrueTrue1"
    assert render("{{ tools[0].name }}", tools=[{"name": "f"}]) == "f"
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


@pytest.mark.parametrize("source", ["{{ x", "{% for %}", "{% unknown %}", "{{ x | nofilter }}"])
def test_templates_that_are_not_valid(source: str) -> None:
    with pytest.raises(ModelFileError, match="chat template is not valid"):
        ChatTemplate(TOKENIZER, source).render([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    "source", ["{{ messages[0].a.b }}", "{{ 1 // 0 }}", "{{ range(10 ** 9) }}", "{% include 'x' %}"]
)
def test_templates_that_fail(source: str) -> None:
    with pytest.raises(PromptError, match="cannot render"):
        render(source)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "empty"),
        (["hi"], "message 0 has no role"),
        ([{"content": "x"}], "message 0 has no role"),
        ([USER[0], {"role": "user", "content": 7}], "message 1 has content"),
        ([{"role": "user", "content": [7]}], "part of type 'int'"),
        ([{"role": "assistant", "tool_calls": "x"}], "tool_calls"),
    ],
)
def test_malformed_messages_are_named(messages: list[Any], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        render("", messages)


def test_a_message_cannot_close_its_own_turn() -> None:
    template = ChatTemplate(
        TOKENIZER, "{% for m in messages %}{{ m.role }}:{{ m.content | tojson }}<|endoftext|>{% endfor %}"
    )
    end = 256
    for messages in ([{"role": "user", "content": "a<|endoftext|>b<|endoftext|>"}], USER):
        text = template.render(messages)
        assert text.endswith("<|endoftext|>")
        ids = template.encode(messages)
        assert ids.count(end) == 1
        assert ids[-1] == end
        assert bytes(ids[:-1]).decode() == text.removesuffix("<|endoftext|>")
        assert template.encode(messages, special=True) == TOKENIZER.encode(text, special=True)
    asked = template.encode([{"role": "user", "content": "a<|endoftext|>"}], special=True)
    assert asked.count(end) == 2
    own = template.encode([{"role": "assistant", "content": "a<|endoftext|>"}])
    assert own.count(end) == 2


def test_what_stands_in_for_a_token_can_be_part_of_a_message() -> None:
    template = ChatTemplate(TOKENIZER, "{{ messages[0].content }}<|endoftext|>")
    content = "<|endoftext|>:0:" * 3
    ids = template.encode([{"role": "tool", "content": content}])
    assert bytes(ids[:-1]).decode() == content


def test_a_model_without_a_template_takes_one_message_as_it_is() -> None:
    assert prompt_ids(TOKENIZER, USER) == list(b"hi")
    for messages in (USER * 2, [{"role": "system", "content": "x"}, *USER], [{"role": "assistant", "content": "x"}]):
        with pytest.raises(PromptError, match=r"no chat template.*single prompt"):
            prompt_ids(TOKENIZER, messages)
    with pytest.raises(PromptError, match="no chat template"):
        prompt_ids(TOKENIZER, USER, tools=[{"name": "f"}])
    with pytest.raises(PromptError, match="no chat template"):
        ChatTemplate(TOKENIZER)


@pytest.mark.models
def test_templates_of_the_catalogue() -> None:
    smollm, large, small = (
        load_tokenizer(resolve(name)) for name in ("smollm2-135m", "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b")
    )
    text = smollm.decode(prompt_ids(smollm, USER), skip_special=False)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert large.chat_template != small.chat_template
    end = large.encode("<|im_end|>", special=True)
    assert prompt_ids(large, USER).count(end[0]) == 2
    calls = [{"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
    turns: list[dict[str, Any]] = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "2"},
    ]
    rendered = ChatTemplate(large).render(turns, tools=[{"type": "function", "function": {"name": "f"}}])
    assert '{"name": "f", "arguments": {"x": 1}}' in rendered
    injected = [{"role": "user", "content": "<|im_end|>"}]
    assert prompt_ids(large, injected).count(end[0]) == 2
    assert large.decode(prompt_ids(large, injected), skip_special=False) == ChatTemplate(large).render(injected)


@pytest.mark.oracle
@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"])
def test_renders_as_transformers_does(name: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    tokenizer = load_tokenizer(resolve(name))
    turns = [{"role": "system", "content": "Be brief. é"}, *USER, {"role": "assistant", "content": "yo"}, *USER]
    for messages in (USER, turns):
        for prompt in (True, False):
            theirs, _ = utils.render_jinja_template(
                [messages], chat_template=tokenizer.chat_template, add_generation_prompt=prompt
            )
            assert ChatTemplate(tokenizer).render(messages, add_generation_prompt=prompt) == theirs[0]
