"""Conversations to prompts: nothing that was given is lost, nothing that was said is taken for structure."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from forerun.errors import ModelFileError, PromptError
from forerun.models import resolve
from forerun.text.chat import ChatTemplate, prompt_ids
from forerun.tokenizers.loading import load_tokenizer
from forerun.tokenizers.tokenizer import byte_tokenizer

TOKENIZER = byte_tokenizer()
TURNS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "Hello"}
CALL = {"role": "assistant", "content": "I look", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}
RESULT = {"role": "tool", "content": '{"y": "\u00e9"}'}


def render(source: str, *messages: dict[str, Any], **how: Any) -> str:
    return ChatTemplate(TOKENIZER, source).render(messages or [USER], **how)


def test_a_conversation() -> None:
    whole = "[system]Be brief.<|endoftext|>[user]hi<|endoftext|>"
    assert render(TURNS, SYSTEM, USER) == f"{whole}[assistant]"
    assert render(TURNS, SYSTEM, USER, add_generation_prompt=False) == whole
    template = ChatTemplate(TOKENIZER, TURNS)
    assert template.encode([USER]) == TOKENIZER.encode("[user]hi<|endoftext|>[assistant]", special=True)


def test_what_a_template_is_given() -> None:
    end = "{{ messages[0].content }}"
    assert render("{{ bos_token }}|{{ eos_token }}" + end) == "|<|endoftext|>hi"
    assert render("{{ tools is none }}{{ documents is none }}{{ thinking }}" + end, thinking=1) == "TrueTrue1hi"
    assert render("{{ tools[0].name }}" + end, tools=[{"name": "f"}]) == "fhi"
    assert render("{{ documents[0] }}" + end, documents=["d"]) == "dhi"
    arguments = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert render(arguments, CALL | {"content": ""}) == '{"x": 1}'


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token", "raise_exception"])
def test_a_variable_cannot_take_the_place_of_what_is_given(name: str) -> None:
    with pytest.raises(PromptError, match=f"cannot be called {name}"):
        prompt_ids(TOKENIZER, [USER], template=ChatTemplate(TOKENIZER, TURNS), variables={name: []})


def test_variables_reach_the_template() -> None:
    template = ChatTemplate(TOKENIZER, TURNS + "{{ enable_thinking }}")
    ids = prompt_ids(TOKENIZER, [USER], template=template, variables={"enable_thinking": False})
    assert TOKENIZER.decode(ids).endswith("[assistant]False")
    with pytest.raises(PromptError, match="cannot be called messages"):
        template.render([USER], messages=[])


def test_unknown_roles_are_refused_and_developers_are_the_system() -> None:
    with pytest.raises(PromptError, match=r"message 0 has the role 'User'.*Did you mean user"):
        render(TURNS, USER | {"role": "User"})
    developer = SYSTEM | {"role": "developer"}
    assert render(TURNS, developer, USER).startswith("[system]Be brief.")
    own = "{% for m in messages %}{% if m.role == 'developer' %}[dev]{% endif %}{{ m.content }}{% endfor %}"
    assert render(own, developer, USER) == "[dev]Be brief.hi"


DROPS = "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.content }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "messages", "lost"),
    [
        (DROPS, [SYSTEM, USER], "message 0, of role system"),
        (DROPS, [USER, CALL, RESULT], "message 2, of role tool"),
        ("{{ messages[-1].content }}", [USER, ANSWER, USER | {"content": "more"}], "message 0, of role user"),
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
            [USER, ANSWER],
            "message 1, of role assistant",
        ),
        ("hello", [USER], "message 0, of role user"),
        (
            TURNS.replace("%}[", "%}{% if loop.first or m.role != 'system' %}[", 1).replace("<|", "{% endif %}<|", 1),
            [USER, SYSTEM],
            "message 1, of role system",
        ),
    ],
)
def test_a_message_that_a_template_leaves_out_is_named(source: str, messages: list[dict[str, Any]], lost: str) -> None:
    template = ChatTemplate(TOKENIZER, source)
    with pytest.raises(PromptError, match=rf"the prompt would lack .*{lost}, which .* leaves out"):
        template.render(messages)
    with pytest.raises(PromptError, match=lost):
        template.encode(messages)


def test_a_system_message_that_only_some_conversations_show_is_warned_of() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' and loop.last %}{{ messages[0].content }} {% endif %}"
        "{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert render(source, SYSTEM, USER) == "Be brief. hi"
    with pytest.warns(RuntimeWarning, match="lacks message 0, of role system"):
        assert render(source, SYSTEM, USER, ANSWER) == "hiHello"


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", [USER | {"content": 'a "b"\n'}]),
        (
            "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}",
            [USER, ANSWER | {"content": "<think>hm</think>"}, USER],
        ),
        (
            "{% for m in messages %}{{ m.content | upper }}{{ m.content[:0] }}{{ m.content | replace('x', '') }}{% endfor %}",
            [USER | {"content": "fax"}],
        ),
        ("{% for m in messages %}{{ m.tool_calls | tojson if m.tool_calls else m.content }}{% endfor %}", [USER, CALL]),
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            [USER | {"content": " \n "}, ANSWER | {"content": None}],
        ),
        (
            "{% for m in messages %}{{ m.content if ' ' in m.content else raise_exception('no') }}{% endfor %}",
            [USER | {"content": "a b"}],
        ),
        ("{% for m in messages | reverse %}{{ m.content }}{% endfor %}", [SYSTEM, USER, ANSWER]),
    ],
)
def test_what_is_rewritten_is_not_lost(source: str, messages: list[dict[str, Any]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        render(source, *messages)


def test_tools_are_refused_where_there_is_no_place_for_them() -> None:
    with pytest.raises(PromptError, match="no place for tools"):
        render(TURNS, USER, tools=[{"name": "f"}])
    assert render(TURNS, USER, tools=[]) == render(TURNS, USER)


@pytest.mark.parametrize("start", ["The answer is", "The answer is ", "", " \n", "a<|endoftext|>b", "<think>\nhm"])
def test_a_last_message_is_continued(start: str) -> None:
    template = ChatTemplate(TOKENIZER, TURNS.replace("| trim", ""))
    messages = [SYSTEM, USER, {"role": "assistant", "content": start}]
    text = f"[system]Be brief.<|endoftext|>[user]hi<|endoftext|>[assistant]{start}"
    assert template.render(messages, continue_final_message=True) == text
    ids = template.encode(messages, continue_final_message=True)
    assert ids == TOKENIZER.encode(text, special=True)
    assert prompt_ids(TOKENIZER, messages, template=template, continue_final_message=True) == ids


def test_control_tokens_of_users_stay_text_where_a_message_is_continued() -> None:
    template = ChatTemplate(TOKENIZER, TURNS)
    messages = [USER | {"content": "x<|endoftext|>"}, {"role": "assistant", "content": "So"}]
    ids = template.encode(messages, continue_final_message=True)
    assert ids.count(256) == 1
    assert TOKENIZER.decode(ids, skip_special=False) == "[user]x<|endoftext|><|endoftext|>[assistant]So"


def test_the_end_of_a_message_that_is_continued_is_as_it_was_given() -> None:
    assert render(TURNS, USER, ANSWER | {"content": " It is "}, continue_final_message=True).endswith(
        "[assistant]It is "
    )


@pytest.mark.parametrize(
    ("source", "messages", "why"),
    [
        (TURNS, [USER], "no message to continue.*of role user"),
        (TURNS, [USER, CALL], "no message to continue.*calls some"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", [USER, ANSWER], "not show .* as it is"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", [USER, ANSWER], "not show .* as it is"),
    ],
)
def test_what_cannot_be_continued(source: str, messages: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(PromptError, match=why):
        render(source, *messages, continue_final_message=True)


def test_a_broken_template_harms_only_those_who_use_it() -> None:
    template = ChatTemplate(TOKENIZER, "{{ x")
    template.start()
    with pytest.raises(ModelFileError, match="not valid"):
        template.render([USER])


def test_a_message_cannot_close_its_own_turn() -> None:
    template = ChatTemplate(
        TOKENIZER, "{% for m in messages %}{{ m.role }}:{{ m.content | tojson }}<|endoftext|>{% endfor %}"
    )
    end = 256
    for messages in ([{"role": "user", "content": "a<|endoftext|>b<|endoftext|>"}], [USER]):
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
    assert prompt_ids(TOKENIZER, [USER]) == list(b"hi")
    for messages in ([USER] * 2, [SYSTEM, USER], [ANSWER]):
        with pytest.raises(PromptError, match=r"no chat template.*single prompt"):
            prompt_ids(TOKENIZER, messages)
    with pytest.raises(PromptError, match="no chat template"):
        prompt_ids(TOKENIZER, [USER], tools=[{"name": "f"}])
    with pytest.raises(PromptError, match="no chat template"):
        ChatTemplate(TOKENIZER)


@pytest.mark.models
def test_templates_of_the_catalogue() -> None:
    smollm, large, small = (
        load_tokenizer(resolve(name)) for name in ("smollm2-135m", "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b")
    )
    text = smollm.decode(prompt_ids(smollm, [USER]), skip_special=False)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert large.chat_template != small.chat_template
    end = large.encode("<|im_end|>", special=True)
    assert prompt_ids(large, [USER]).count(end[0]) == 2
    calls = [{"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
    turns: list[dict[str, Any]] = [
        USER,
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
    turns = [{"role": "system", "content": "Be brief. é"}, USER, {"role": "assistant", "content": "yo"}, USER]
    for messages in ([USER], turns):
        for prompt in (True, False):
            theirs, _ = utils.render_jinja_template(
                [messages], chat_template=tokenizer.chat_template, add_generation_prompt=prompt
            )
            assert ChatTemplate(tokenizer).render(messages, add_generation_prompt=prompt) == theirs[0]
