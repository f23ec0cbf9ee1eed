"""Prompt files: what a line may say, and what comes out for it."""

from __future__ import annotations

import pytest

from forerun.cli.prompts import Question, parse


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b'"text"', "not a JSON object"),
        (b"{}", "either prompt or turns"),
        (b'{"prompt": "a", "turns": ["b"]}', "either prompt or turns"),
        (b'{"prompt": 3}', "prompt must be text"),
        (b'{"prompt": null}', "prompt must be text"),
        (b'{"turns": "a"}', "turns must be a list"),
        (b'{"turns": []}', "turns must be a list"),
        (b'{"turns": ["a", 3]}', "turns must be a list"),
        (b'{"prompt": "a", "prediction": 3}', "prediction must be text"),
        (b'{"turns": ["a"], "prediction": "b"}', "goes with prompt"),
    ],
)
def test_a_malformed_line_is_a_question_with_an_error(line: bytes, error: str) -> None:
    (question,) = parse([line])
    assert question.done
    assert error in str(question.error)
    assert question.row()["line"] == 1


def test_blank_lines_count_but_are_no_questions() -> None:
    questions = parse([b"", b'{"prompt": "a"}', b"  \r", b'{"id": 7, "turns": ["b"], "more": 1}\r'])
    assert [(q.line, q.turns, q.labels) for q in questions] == [(2, ("a",), {}), (4, ("b",), {"id": 7})]


def test_a_single_turn_is_a_prompt_and_its_answer_a_flat_row() -> None:
    question = Question(1, ("hello",), {"id": 1})
    assert question.prompt() == "hello"
    question.answers.append({"text": "hi"})
    assert question.done
    assert question.row() == {"id": 1, "text": "hi"}


def test_several_turns_are_a_conversation_and_their_answers_a_list() -> None:
    question = Question(1, ("one", "two"), {"id": 1})
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
    question = Question(3, ("one", "two"), {}, [{"text": "eins"}], "it broke")
    assert question.row() == {"line": 3, "error": "it broke", "turns": [{"text": "eins"}]}
