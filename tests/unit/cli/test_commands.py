"""What can be said to a chat itself, and that none of it reaches the model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import forerun
from forerun.cli import talking
from forerun.cli.commands import _COMMANDS, HELP
from forerun.cli.conversation import Conversation
from forerun.cli.output import Output
from forerun.text.chat import ChatTemplate
from tests.e2e.conftest import TEMPLATE


class Typed:
    """Lines from a list; `KeyboardInterrupt` among them is Ctrl-C."""

    def __init__(self, lines: Sequence[str | type[KeyboardInterrupt]]) -> None:
        self.lines = list(lines)

    def read(self, more: bool = False) -> str:
        if not self.lines:
            raise EOFError
        line = self.lines.pop(0)
        if not isinstance(line, str):
            raise line
        return line


@pytest.fixture
def llm() -> Iterator[forerun.LLM]:
    with forerun.LLM.load("toy") as llm:
        llm.assembly = replace(llm.assembly, template=ChatTemplate(llm.assembly.tokenizer, TEMPLATE))
        yield llm


def talk(llm: forerun.LLM, *lines: str | type[KeyboardInterrupt], quiet: bool = False) -> Conversation:
    """A conversation in which these lines were typed."""
    conversation = Conversation(llm, None, {"max_tokens": 8}, Output(), quiet)
    talking.talk(conversation, Typed(lines))
    return conversation


def said(conversation: Conversation) -> list[str]:
    """What the user said to the model."""
    return [message["content"] for message in conversation.messages if message["role"] == "user"]


def test_what_is_no_command_is_said_to_the_model(llm: forerun.LLM) -> None:
    conversation = talk(llm, "hello ", "", "  ", " /usr/bin is a folder", "two\nlines", "/exit", "never")
    assert said(conversation) == ["hello", "/usr/bin is a folder", "two\nlines"]
    assert len(conversation.messages) == 6


def test_a_slash_in_front_never_reaches_the_model(llm: forerun.LLM, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = talk(llm, "/nothing", "/usr/bin is a folder", "/", "/SET temperature 1", "/help\nme")
    assert said(conversation) == []
    err = capsys.readouterr().err
    for name in ("/nothing", "/usr/bin", "/", "/SET"):
        assert f"there is no command {name}; /help lists them" in err
    assert HELP in err


def test_help_names_every_command() -> None:
    assert {line.split()[0] for line in HELP.splitlines() if line.startswith("/")} == {*_COMMANDS, "/exit"} - {"/save!"}
    assert max(map(len, HELP.splitlines())) <= 80


def test_blocks(llm: forerun.LLM) -> None:
    conversation = talk(
        llm, '"""', "/not a command", "  indented", '"""', '"""one line"""', '"""""" ', '"""no end', "x"
    )
    assert said(conversation) == ["/not a command\n  indented", "one line", "no end\nx"]


def test_ctrl_c_leaves_a_block_and_not_the_chat(llm: forerun.LLM, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = talk(llm, KeyboardInterrupt, '"""', "half", KeyboardInterrupt, "hello")
    assert said(conversation) == ["hello"]
    assert capsys.readouterr().err.count("/exit or Ctrl-D to leave") == 2


def test_set_changes_what_follows(llm: forerun.LLM, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = talk(
        llm,
        "/set max_tokens 3",
        "hello",
        "/set max-tokens none",
        "hello",
        "/set stop a b",
        '/set stop ["a", "\\n"]',
        '/set logit_bias {"120": -5}',
        "/set ignore_eos true",
        "/set",
    )
    answers = [m["content"] for m in conversation.messages if m["role"] == "assistant"]
    assert [len(answer) for answer in answers] == [3, 8]
    assert conversation.asked == {
        "max_tokens": 8,
        "stop": ["a", "\n"],
        "logit_bias": {120: -5},
        "ignore_eos": True,
    }
    err = capsys.readouterr().err
    assert '(stop ["a b"])' in err
    assert "temperature 0.0\n" in err
    assert 'stop ["a", "\\n"]\n' in err
    assert "seed none\n" in err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/set temprature 1", "unknown parameter 'temprature'"),
        ("/set temperature", "needs a value"),
        ("/set temperature hot", "temperature is 'hot'"),
        ("/set temperature 1e999", "temperature is '1e999'"),
        ("/set logit_bias 5", "logit_bias is 5"),
        ("/retry", "nothing to answer once more"),
        ("/stats", "no answer yet"),
        ("/save", "/save needs the name of a file"),
        ("/save x", "nothing to save yet"),
        ("/load", "/load needs the name of a file"),
        ("/load no/such/file", "cannot read no/such/file: no such file"),
    ],
)
def test_what_is_wrong_with_a_command_is_one_line(
    llm: forerun.LLM, capsys: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    conversation = talk(llm, line)
    err = capsys.readouterr().err
    assert err.startswith("forerun: ")
    assert err.count("\n") == 1
    assert says in err
    assert conversation.asked == {"max_tokens": 8}


def test_a_parameter_that_the_model_cannot_take_costs_the_turn_only(
    llm: forerun.LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = talk(llm, '/set logit_bias {"999999": 1}', "hello", "/set logit_bias none", "hello")
    assert said(conversation) == ["hello"]
    assert "logit_bias has the token id 999999" in capsys.readouterr().err


def test_a_system_message_is_in_front_from_now_on(llm: forerun.LLM) -> None:
    conversation = talk(llm, "/system Be\nbrief.", "hello")
    assert conversation.system == "Be\nbrief."
    assert conversation.last is not None
    assert conversation.last.usage.prompt_tokens == len("s: Be\nbrief.\nu: hello\na: ")
    assert talk(llm, "/system x", "/system").system is None


def test_retry_answers_the_last_message_once_more(llm: forerun.LLM) -> None:
    conversation = talk(llm, "hello", "again", "/set max_tokens 2", "/retry")
    assert said(conversation) == ["hello", "again"]
    assert len(conversation.messages) == 4
    assert len(conversation.messages[-1]["content"]) == 2


def test_reset_keeps_the_system_message(llm: forerun.LLM) -> None:
    conversation = talk(llm, "/system x", "hello", "/reset")
    assert (conversation.messages, conversation.system) == ([], "x")


def test_stats_count_all_answers(llm: forerun.LLM, capsys: pytest.CaptureFixture[str]) -> None:
    talk(llm, "hello", "again", "/stats", quiet=True)
    err = capsys.readouterr().err
    assert err.startswith("2 answers of 16 tokens in ")
    assert " steps, " in err
    assert err.endswith("the model holds 4,096\n")
    assert err.count("\n") == 1


def test_a_saved_conversation_goes_on_elsewhere(
    llm: forerun.LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my talk.json"
    first = talk(llm, "/system brief", "hello", f"/save {path}", "again")
    saved = json.loads(path.read_text("utf-8"))
    assert saved == {"model": "toy", "messages": [{"role": "system", "content": "brief"}, *first.messages[:2]]}
    second = talk(llm, f"/load {path}", "again")
    assert (second.messages, second.system) == (first.messages, "brief")
    assert "(2 messages from " in capsys.readouterr().err


def test_a_file_is_written_over_only_when_told(
    llm: forerun.LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "talk.json"
    path.write_text("precious")
    talk(llm, "hello", f"/save {path}")
    assert path.read_text() == "precious"
    assert f"{path} is there already; /save! {path} writes over it" in capsys.readouterr().err
    talk(llm, "hello", f"/save! {path}")
    assert json.loads(path.read_text())["messages"][0]["content"] == "hello"
    talk(llm, "hello", f"/save {tmp_path / 'no' / 'folder'}", f"/save! {tmp_path}")
    assert capsys.readouterr().err.count("cannot write") == 2


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "is not a saved conversation: not JSON"),
        (b"\xff", "not UTF-8 text"),
        (b"[" * 100_000, "nested more than 100 deep"),
        (b'{"model": "x"}', 'it has no list of "messages"'),
        (b'{"messages": []}', "the conversation is empty"),
        (b'{"messages": ["x"]}', "message 0 has no role"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_files_that_are_no_conversation(
    llm: forerun.LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, says: str
) -> None:
    path = tmp_path / "talk.json"
    path.write_bytes(data)
    conversation = talk(llm, "hello", f"/load {path}")
    assert says in capsys.readouterr().err
    assert said(conversation) == ["hello"]


def test_quiet_says_nothing_that_was_not_asked_for(llm: forerun.LLM, capsys: pytest.CaptureFixture[str]) -> None:
    talk(llm, "hello", quiet=True)
    shown = capsys.readouterr()
    assert shown.err == ""
    assert len(shown.out) == 9
