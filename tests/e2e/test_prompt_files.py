"""`forerun generate --prompts`: one line of JSON for each line of the file, in order, whatever happens to the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Cli

TOY = ("--backend", "toy", "--max-tokens", "24")


def write(path: Path, *lines: object) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return str(path)


@pytest.mark.parametrize("width", [(), ("--concurrency", "3")], ids=["alone", "three"])
def test_answers_come_in_order_with_their_labels(cli: Cli, tmp_path: Path, width: tuple[str, ...]) -> None:
    prompts = ["the target ", "what ", "in one pass, so ", "the drafter "]
    entries = [{"id": i, "category": f"c{i}", "prompt": text} for i, text in enumerate(prompts)]
    ran = cli("generate", "--prompts", write(tmp_path / "p.jsonl", *entries), *TOY, *width)
    assert ran.status == 0, ran.err
    assert [(row["id"], row["category"]) for row in ran.rows] == [(i, f"c{i}") for i in range(4)]
    for row, prompt in zip(ran.rows, prompts, strict=True):
        alone = cli("generate", prompt, *TOY, "--json", "--draft", "none").json
        assert row["token_ids"] == alone["token_ids"]
        assert set(row) == {"id", "category"} | set(alone)


def test_a_malformed_line_is_named_and_the_others_run(cli: Cli, tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl",
        {"id": "a", "prompt": "the target "},
        '{"prompt": "no end',
        "",
        {"id": "b", "turns": []},
        {"id": "c", "prompt": "x", "turns": ["y"]},
        {"id": "d", "prompt": "  "},
        "[1]",
        {"id": "e", "turns": ["the drafter "]},
    )
    ran = cli("generate", "--prompts", path, *TOY)
    assert ran.status == 1
    assert [row.get("id") for row in ran.rows] == ["a", None, "b", "c", "d", None, "e"]
    assert [row["line"] for row in ran.rows if "error" in row] == [2, 4, 5, 6, 7]
    assert "text" in ran.rows[0]
    assert "text" in ran.rows[-1]
    for number in (2, 4, 5, 6, 7):
        assert ran.err.count(f"line {number}: ") == 1
    assert "5 lines failed" in ran.err


def test_a_file_of_malformed_lines_fails_without_loading_anything(cli: Cli, tmp_path: Path) -> None:
    ran = cli("generate", "--prompts", write(tmp_path / "p.jsonl", "{", "{"), "--model", "no-such-model")
    assert ran.status == 1
    assert [row["line"] for row in ran.rows] == [1, 2]


def test_a_prompt_past_the_context_fails_alone(cli: Cli, tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "x" * 5000}, {"prompt": "the target "})
    ran = cli("generate", "--prompts", path, *TOY)
    assert ran.status == 1
    assert "5000 tokens" in ran.rows[0]["error"]
    assert ran.rows[1]["usage"]["completion_tokens"] == 24


@pytest.mark.usefixtures("chatting_toy")
@pytest.mark.parametrize("width", ["1", "2"])
def test_turns_are_asked_in_order_with_the_earlier_answers(cli: Cli, tmp_path: Path, width: str) -> None:
    path = write(
        tmp_path / "p.jsonl",
        {"id": 1, "turns": ["the target ", "and the drafter "]},
        {"id": 2, "turns": ["what it "]},
        {"id": 3, "turns": ["one ", "two ", "three "]},
    )
    ran = cli("generate", "--prompts", path, *TOY, "--concurrency", width)
    assert ran.status == 0, ran.err
    first, single, third = ran.rows
    assert [len(first["turns"]), len(third["turns"])] == [2, 3]
    assert "token_ids" in single
    said = first["turns"][0]["text"]
    conversation = f"u: the target \na: {said}\nu: and the drafter \na: "
    assert first["turns"][1]["usage"]["prompt_tokens"] == len(conversation.encode())
    alone = cli("generate", conversation, "--raw", *TOY, "--json", "--draft", "none").json
    assert first["turns"][1]["token_ids"] == alone["token_ids"]


def test_a_line_is_asked_with_its_own_parameters(cli: Cli, tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"prompt": "the target ", "max_tokens": 3},
        {"prompt": "the target ", "max_tokens": None},
        {"prompt": "the target ", "stop": " again"},
        {"prompt": "the target ", "logit_bias": {"120": 1000}, "max_tokens": 2},
        {"prompt": "the target ", "temperature": 1.5, "seed": 3},
        {"prompt": [116, 104, 101, 32]},
        {"prompt": [999]},
        {"prompt": "the target ", "logit_bias": {"999999": 1}},
    ]
    ran = cli("generate", "--prompts", write(tmp_path / "p.jsonl", *lines), *TOY)
    assert ran.status == 1
    texts = [row.get("text") for row in ran.rows]
    assert texts[0] == texts[1][:3]
    assert texts[2] == "reads"
    assert texts[3] == "xx"
    hot = cli("generate", "the target ", *TOY, "--temperature", "1.5", "--seed", "3", "--json").json
    assert (texts[4], ran.rows[4]["seed"]) == (hot["text"], 3)
    assert texts[5] == cli("generate", "the ", *TOY, "--json").json["text"]
    assert "the prompt has the token id 999" in ran.rows[6]["error"]
    assert "logit_bias has the token id 999999" in ran.rows[7]["error"]


@pytest.mark.usefixtures("chatting_toy")
def test_messages_are_a_conversation_to_go_on_with(cli: Cli, tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "the target "},
        {"role": "assistant", "content": "reads"},
        {"role": "user", "content": [{"type": "text", "text": "and the drafter "}]},
    ]
    path = write(
        tmp_path / "p.jsonl",
        {"id": 1, "messages": messages},
        {"messages": messages[:1], "system": "be brief"},
        {"messages": [{"role": "user", "content": 5}]},
    )
    first, second, third = cli("generate", "--prompts", path, *TOY).rows
    conversation = "u: the target \na: reads\nu: and the drafter \na: "
    alone = cli("generate", conversation, "--raw", *TOY, "--json").json
    assert (first["id"], first["token_ids"], first["usage"]) == (1, alone["token_ids"], alone["usage"])
    assert second["usage"]["prompt_tokens"] == len("s: be brief\nu: the target \na: ")
    assert "message 0 has content that is neither" in third["error"]


def test_nothing_that_a_line_holds_ends_the_others(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    lines = [
        b'\xef\xbb\xbf{"prompt": "the "}',
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": "the ", "id": NaN}',
        b'{"prompt": "the ", "id": ' + b"9" * 5000 + b"}",
        b'{"prompt": "the ", "id": 1e999}',
        b'{"prompt": "\\ud83d"}',
        b'{"prompt": "the ", "id": "\\ud83d"}',
        b'{"prompt": "the ", "tokens": 3}',
        b'{"prompt": "the ", "id": ["x", 1.5, null]}',
    ]
    path.write_bytes(b"\n".join(lines))
    ran = cli("generate", "--prompts", str(path), *TOY)
    assert ran.status == 1
    assert len(ran.rows) == len(lines)
    assert [row.get("line") for row in ran.rows] == [None, 2, 3, 4, 5, 6, None, 8, None]
    assert (ran.rows[6]["id"], ran.rows[8]["id"]) == ("\ud83d", ["x", 1.5, None])
    assert "unknown key 'tokens'" in ran.rows[7]["error"]
    assert ran.out.isascii()
    assert ran.err.count("\n") == 7


def test_turns_need_a_chat_model(cli: Cli, tmp_path: Path) -> None:
    ran = cli("generate", "--prompts", write(tmp_path / "p.jsonl", {"turns": ["a", "b"]}), *TOY)
    assert ran.status == 1
    assert "no chat template" in ran.rows[0]["error"]


def test_prompts_can_come_from_standard_input_and_go_to_a_file(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    ran = cli("generate", "--prompts", "-", *TOY, "--output", str(out), stdin='{"prompt": "the "}\n{"prompt": "so "}')
    assert (ran.status, ran.out) == (0, "")
    assert len(out.read_text("utf-8").splitlines()) == 2


@pytest.mark.usefixtures("chatting_toy")
def test_a_system_message_is_part_of_the_prompt(cli: Cli) -> None:
    data = cli("generate", "hello", *TOY, "--json", "--system", "Be brief.").json
    assert data["usage"]["prompt_tokens"] == len("s: Be brief.\nu: hello\na: ")
