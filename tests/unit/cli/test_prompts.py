"""Prompt files: what a line may say, and what comes out for it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from forerun.cli.prompts import KNOWN, Question, first_turns, parse, read
from forerun.core.sampling import Sampling
from forerun.errors import UsageError


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b'"text"', "not a JSON object"),
        (b"{}", "either prompt or turns or messages"),
        (b'{"prompt": "a", "turns": ["b"]}', "either prompt or turns or messages"),
        (b'{"prompt": "a", "messages": [{}]}', "either prompt or turns or messages"),
        (b'{"prompt": null}', "either prompt or turns or messages"),
        (b'{"prompt": 3}', "prompt must be text or a list of token ids"),
        (b'{"prompt": []}', "prompt must be text or a list of token ids"),
        (b'{"prompt": [1, 2.0]}', "prompt must be text or a list of token ids"),
        (b'{"prompt": [true]}', "prompt must be text or a list of token ids"),
        (b'{"turns": "a"}', "turns must be a list"),
        (b'{"turns": []}', "turns must be a list"),
        (b'{"turns": ["a", 3]}', "turns must be a list"),
        (b'{"messages": "a"}', "messages must be a list of objects"),
        (b'{"messages": []}', "messages must be a list of objects"),
        (b'{"messages": ["a"]}', "messages must be a list of objects"),
        (b'{"prompt": "a", "prediction": 3}', "prediction must be text"),
        (b'{"prompt": "a", "system": 3}', "system must be text"),
        (b'{"turns": ["a"], "prediction": "b"}', "goes with prompt"),
        (b'{"prompt": "a", "max_token": 3}', "unknown key 'max_token'; known: prompt, turns,"),
        (b'{"promt": "a"}', "Did you mean prompt?"),
        (b'{"prompt": "a", "max_tokens": 0}', "max_tokens is 0; it must be at least 1"),
        (b'{"prompt": "a", "temperature": "hot"}', "temperature is 'hot'"),
        (b'{"prompt": "a", "logit_bias": {"x": 1}}', "logit_bias has the key 'x'"),
        (b'{"prompt": "a", "logit_bias": {"' + b"9" * 5000 + b'": 1}}', "logit_bias has the key '999"),
        (b'{"prompt": "a", "stop": [3]}', "stop is [3]"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN is not a JSON value"),
        (b'{"prompt": "a", "temperature": 1e999}', "the number 1e999 is too large"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "a number of 5,000 digits"),
        (b'{"prompt": "a", "prompt": "b"}', "the key 'prompt' stands there twice"),
        (b'{"prompt": ' + b"[" * 100_000, "nested more than 100 deep"),
        (b'{"prompt": "a", "id": ' + b"[" * 300 + b"]" * 300 + b"}", "nested more than 100 deep"),
        (b'{"prompt": "a", "id": {}}', "id must be text, a number, or a list of these"),
        (b'{"prompt": "a", "answer": [[1]]}', "answer must be text, a number, or a list of these"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_malformed_line_is_a_question_with_an_error(line: bytes, error: str) -> None:
    (question,) = parse([line])
    assert question.done
    assert error in str(question.error)
    assert question.row()["line"] == 1


def test_blank_lines_count_but_are_no_questions() -> None:
    questions = parse([b"", b'{"prompt": "a"}', b"  \r", b'{"id": 7, "turns": ["b"], "answer": ["c"]}\r'])
    assert [(q.line, q.turns, q.labels) for q in questions] == [
        (2, ("a",), {}),
        (4, ("b",), {"id": 7, "answer": ["c"]}),
    ]


def test_a_line_says_how_it_is_asked() -> None:
    line = {
        "prompt": "a",
        "system": "be brief",
        "prediction": "b",
        "temperature": 0.5,
        "stop": "END",
        "logit_bias": {"12": -5, "7": 1},
        "seed": None,
        "max_tokens": None,
        "id": None,
    }
    (question,) = parse([json.dumps(line).encode()])
    assert question.error is None
    assert question.options == {
        "system": "be brief",
        "prediction": "b",
        "temperature": 0.5,
        "stop": "END",
        "logit_bias": {12: -5, 7: 1},
    }
    assert question.labels == {"id": None}


def test_every_parameter_of_a_request_may_stand_in_a_line() -> None:
    assert set(Sampling.names()) <= set(KNOWN)


def test_token_ids_and_messages_are_asked_as_they_are() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ids, chat = parse([b'{"prompt": [1, 2]}', json.dumps({"messages": messages}).encode()])
    assert (ids.prompt(), chat.prompt()) == ([1, 2], messages)
    assert not chat.done
    chat.answers.append({"text": "c"})
    assert chat.done
    assert chat.row() == {"text": "c"}


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n')
    assert [question.turns for question in read(path)] == [("a",)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": "a", "max_tokens": 3}', "line 2: max_tokens is for forerun generate"),
        ('{"prompt": "a", "prediction": "b"}', "line 2: prediction is for forerun generate"),
        ('{"prompt": [1]}', "line 2: give prompt or turns as text"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "line 2: give prompt or turns as text"),
        ("{", "line 2: not JSON"),
    ],
)
def test_measured_prompts_are_all_asked_alike(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f'{{"turns": ["a", "b"]}}\n{line}\n')
    with pytest.raises(UsageError, match=re.escape(says)):
        first_turns(path)
    path.write_text('{"turns": ["a", "b"], "id": 3}\n')
    assert [(text, question.labels) for text, question in first_turns(path)] == [("a", {"id": 3})]


def test_a_single_turn_is_a_prompt_and_its_answer_a_flat_row() -> None:
    question = Question(1, ("hello",), labels={"id": 1})
    assert question.prompt() == "hello"
    question.answers.append({"text": "hi"})
    assert question.done
    assert question.row() == {"id": 1, "text": "hi"}


def test_several_turns_are_a_conversation_and_their_answers_a_list() -> None:
    question = Question(1, ("one", "two"), labels={"id": 1})
    assert question.prompt() == [{"role": "user", "content": "one"}]
    question.answers.append({"text": "eins"})
    assert not question.done
    assert question.prompt() == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "eins"},
        {"role": "user", "content": "two"},
    ]
    question.answers.append({"text": "zwei"})
    assert question.row() == {"id": 1, "turns": [{"text": "eins"}, {"text": "zwei"}]}


def test_a_conversation_that_failed_keeps_what_was_answered() -> None:
    question = Question(3, ("one", "two"), answers=[{"text": "eins"}], error="it broke")
    assert question.row() == {"line": 3, "error": "it broke", "turns": [{"text": "eins"}]}
