"""`--cascade`: lossy on purpose, and every answer says what it cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli

ASK = ("generate", "the drafter runs ahead and ", "--backend", "toy", "--max-tokens", "40", "--seed", "4")


def block(cli: Cli, *flags: str) -> Any:
    ran = cli(*ASK, "--json", *flags)
    assert ran.status == 0, ran.err
    return ran.json["metrics"].get("cascade")


def test_only_lossy_rules_have_a_block(cli: Cli) -> None:
    assert block(cli, "--draft", "model:toy") is None
    assert block(cli, "--draft", "model:toy", "--verifier", "block") is None
    told = block(cli, "--draft", "model:toy", "--cascade", "v3:0.5", "--temperature", "0.7")
    assert (told["rule"], told["num_tokens"], told["num_not_deferred"]) == ("v3:0.5", 40, 0)
    assert 0 <= told["num_overrides"] <= 40
    assert 0 < told["mean_total_variation"] < 1
    assert block(cli, "--draft", "model:toy", "--verifier", "typical")["rule"] == "typical"


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        ((), False),
        (("--verifier", "block"), False),
        (("--verifier", "typical"), "typical"),
        (("--cascade", "v3:0.5"), "v3:0.5"),
        (("--cascade", "plain:0.5"), "plain:0.5"),
    ],
    ids=str,
)
def test_every_answer_says_whether_it_is_lossy(cli: Cli, flags: tuple[str, ...], rule: object) -> None:
    assert cli(*ASK, "--json", "--draft", "model:toy", *flags).json["lossy"] == rule


def test_the_summary_line_says_it_too(cli: Cli) -> None:
    line = cli(*ASK, "--draft", "model:toy", "--cascade", "v1:0.3", "--temperature", "1").err
    assert "v1:0.3: " in line
    assert "of 40 tokens not the model's own, TV 0." in line
    assert "not the model's own" not in cli(*ASK, "--draft", "model:toy").err


def test_the_same_model_on_both_sides_gives_nothing_up(cli: Cli) -> None:
    told = block(cli, "--draft", "model:toy", "--cascade", "v3:0.5")
    assert (told["num_overrides"], told["mean_total_variation"]) == (0, 0.0)
    plain = cli(*ASK, "--draft", "none").out
    for cascade in ("v3:0.5", "chow:0.5", "plain:0.5"):
        assert cli(*ASK, "--draft", "model:toy", "--cascade", cascade).out == plain


def test_a_plain_cascade_says_how_often_it_did_not_ask(cli: Cli) -> None:
    told = block(cli, "--draft", "model:toy", "--cascade", "plain:1")
    assert (told["num_not_deferred"], told["num_overrides"], told["mean_total_variation"]) == (40, None, None)
    assert "40 of 40 tokens without asking the model" in cli(*ASK, "--draft", "model:toy", "--cascade", "plain:1").err
    told = block(cli, "--draft", "model:toy", "--cascade", "plain:0")
    assert told["num_not_deferred"] + told["num_tokens"] <= 80


def test_stages(cli: Cli) -> None:
    for draft, cascade in (
        ("model:toy<model:toy", "v3:0.5,v2:0.2"),
        ("model:toy<model:toy", "plain:0.5,plain:0.2"),
        ("model:toy<model:toy", "v3:0.5"),
        ("model:toy<ngram", "chow:0.5"),
    ):
        assert block(cli, "--draft", draft, "--cascade", cascade)["rule"] == cascade


@pytest.mark.parametrize(
    ("draft", "cascade", "words"),
    [
        ("ngram", "v3:0.5", ("v3", "toy", "ngram has none", "--draft model:NAME")),
        ("suffix+recycling", "v3:0.5", ("suffix+recycling has none",)),
        ("none", "v3:0.5", ("none has none",)),
        ("model:toy", "v9:0.5", ("unknown cascade rule 'v9'", "chow, diff, opt, v1, v2, v3")),
        ("model:toy", "v3", ("is not RULE:ALPHA",)),
        ("model:toy", "v3:-1", ("alpha is -1.0",)),
        ("model:toy", "v3:0.5,v1:0.1", ("2 stages", "model:NAME<model:NAME", "model:toy;")),
        ("model:toy<model:toy", "v3:0.5,plain:0.1", ("plain in some stages only",)),
        ("model:toy<model:toy", "plain:0.5", ("1 stages", "model:toy<model:toy")),
        ("ngram", "plain:0.5", ("needs the draft model:NAME",)),
    ],
)
def test_what_cannot_be_is_refused_naming_both_sides(
    cli: Cli, draft: str, cascade: str, words: tuple[str, ...]
) -> None:
    ran = cli(*ASK, "--draft", draft, "--cascade", cascade)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    for word in words:
        assert word in ran.err


def test_what_runs_within_a_cascade(cli: Cli) -> None:
    for rule in ("rejection", "block", "traversal", "kseq"):
        assert block(cli, "--draft", "model:toy", "--cascade", "v3:0.5", "--verifier", rule) is not None
    assert cli(*ASK, "--draft", "model:toy", "--cascade", "v3:0.5", "--verifier", "typical").status == 2
    assert cli(*ASK, "--draft", "model:toy", "--cascade", "plain:0.5", "--verifier", "block").status == 2


def test_the_summary_of_many_prompts_says_it_too(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "the drafter "}\n{"prompt": "what the "}\n', "utf-8")
    many = ("generate", "--prompts", str(file), "--backend", "toy", "--max-tokens", "10", "--draft", "model:toy")
    ran = cli(*many, "--cascade", "v3:0.5", "--temperature", "1", "--seed", "1")
    assert "of 20 tokens not the model's own" in ran.err
    assert [row["metrics"]["cascade"]["num_tokens"] for row in ran.rows] == [10, 10]
    assert "not the model's own" not in cli(*many).err


def test_a_seed_repeats_its_text(cli: Cli) -> None:
    same = (*ASK, "--draft", "model:toy", "--cascade", "v1:0.5", "--temperature", "0.9")
    assert cli(*same).out == cli(*same).out
