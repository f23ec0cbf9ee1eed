"""From what a caller asks to a request: what each option becomes, and what is refused before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import forerun
from forerun import Speculation
from forerun.asking import asked, encode
from forerun.assembly import Assembly
from forerun.errors import PromptError, SamplingError, UsageError
from forerun.text.chat import ChatTemplate

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}\n{% endfor %}a: "


@pytest.fixture(scope="module")
def toy() -> Iterator[Assembly]:
    with forerun.LLM.load("toy", draft="ngram") as llm:
        yield llm.assembly


@pytest.fixture
def chatting(toy: Assembly) -> Assembly:
    return replace(toy, template=ChatTemplate(toy.tokenizer, TEMPLATE))


def test_options_become_parts_of_the_request(toy: Assembly) -> None:
    chosen = Speculation(num_speculative_tokens=2)
    made = asked(toy, "ab", temperature=0.5, seed=7, memory="anna", prompt_logprobs=0, speculation=chosen, trace=True)
    request = made.request
    assert (request.prompt, request.seed, request.memory, request.prompt_logprobs) == ((97, 98), 7, "anna", 0)
    assert (request.sampling.temperature, request.speculation, made.trace) == (0.5, chosen, True)


@pytest.mark.parametrize(("given", "enabled"), [(None, True), (True, True), (False, False)])
def test_speculation_in_a_word(toy: Assembly, given: bool | None, enabled: bool) -> None:
    assert asked(toy, "ab", speculation=given).request.speculation == Speculation(enabled=enabled)


def test_a_seed_is_drawn_where_none_is_given(toy: Assembly) -> None:
    seeds = {asked(toy, "ab").request.seed for _ in range(8)}
    assert len(seeds) == 8
    # Any JSON reader holds it.
    assert max(seeds) < 2**53


@pytest.mark.parametrize(
    ("options", "ends"),
    [({}, {256}), ({"stop_token_ids": [5]}, {5, 256}), ({"stop_token_ids": [5], "ignore_eos": True}, {5})],
)
def test_what_ends_a_text(toy: Assembly, options: dict[str, Any], ends: set[int]) -> None:
    assert asked(toy, "ab", **options).request.stop_ids == ends


def test_a_template_is_for_text_and_messages_and_not_for_what_is_raw(chatting: Assembly) -> None:
    def text(*given: Any, **options: Any) -> str:
        return bytes(encode(chatting, *given, **options)).decode()

    assert text("hi") == text([{"role": "user", "content": "hi"}]) == "u: hi\na: "
    assert text("hi", system="be kind") == "s: be kind\nu: hi\na: "
    assert text("hi", raw=True) == text(list(b"hi")) == text(list(b"hi"), raw=True) == "hi"


@pytest.mark.parametrize("prompt", ["hi", ""])
def test_raw_text_has_no_place_for_a_system_message(
    toy: Assembly, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(toy.tokenizer), "bos_id", 256)
    with pytest.raises(PromptError, match="raw text is read as it is, so there is no place for a system message"):
        encode(toy, prompt, system="be kind", raw=True)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"prompt_logprobs": -1}, SamplingError, "prompt_logprobs is -1; it must be between 0 and 1000"),
        ({"prompt_logprobs": "2"}, SamplingError, "prompt_logprobs is '2'"),
        ({"prediction": "ab"}, PromptError, "the draft ngram ignores `prediction`"),
        ({"speculation": 1}, UsageError, "speculation is 1; it must be true, false or a Speculation"),
        ({"speculation": Speculation(draft="suffix")}, UsageError, "unknown draft 'suffix'; known: ngram"),
        ({"seed": "x"}, SamplingError, "seed"),
    ],
    ids=str,
)
def test_what_is_refused(toy: Assembly, options: dict[str, Any], error: type[UsageError], says: str) -> None:
    with pytest.raises(error, match=says):
        asked(toy, "ab", **options)


def test_messages_are_not_raw(toy: Assembly) -> None:
    with pytest.raises(PromptError, match="raw takes text or token ids, not chat messages"):
        encode(toy, [{"role": "user", "content": "hi"}], raw=True)
