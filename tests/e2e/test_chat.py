"""`forerun chat`: a conversation over standard input."""

from __future__ import annotations

import pytest

from tests.conftest import Cli

TOY = ("--backend", "toy", "--max-tokens", "24")


@pytest.mark.usefixtures("chatting_toy")
def test_chat_keeps_the_conversation_until_it_is_reset(cli: Cli) -> None:
    ran = cli("chat", *TOY, stdin="the target \n/help\n/nothing\nthe drafter \n/reset\nthe target \n/exit\nnever\n")
    assert ran.status == 0, ran.err
    first, _, third = ran.out.splitlines()
    assert first == third
    assert ran.err.count(" steps") == 3
    assert "/reset" in ran.err
    assert "no command /nothing" in ran.err


@pytest.mark.usefixtures("chatting_toy")
def test_chat_goes_on_after_a_turn_that_is_too_long(cli: Cli) -> None:
    ran = cli("chat", *TOY, stdin=f"{'x' * 5000}\nthe target \n")
    assert ran.status == 0
    assert "5" in ran.err
    assert "/reset" in ran.err
    assert len(ran.out.splitlines()) == 1


@pytest.mark.usefixtures("chatting_toy")
def test_one_bad_byte_ends_no_conversation(cli: Cli) -> None:
    ran = cli("chat", *TOY, stdin=b"\xef\xbb\xbfthe target \ncaf\xe9\nthe target \n")
    assert ran.status == 0, ran.err
    assert len(ran.out.splitlines()) == 3
    assert ran.err.count("not UTF-8 text") == 1


@pytest.mark.usefixtures("chatting_toy")
def test_quiet_leaves_the_answers_alone(cli: Cli) -> None:
    ran = cli("chat", *TOY, "-q", stdin='the target \n"""\nthe\ntarget\n"""\n')
    assert (ran.status, ran.err) == (0, "")
    assert len(ran.out.splitlines()) == 2


def test_chat_needs_a_chat_model(cli: Cli) -> None:
    ran = cli("chat", *TOY)
    assert ran.status == 2
    assert "no chat template" in ran.err
