"""`forerun generate` on the toy model: every flag does what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli

TOY = ("--backend", "toy")
PROMPT = "the drafter runs ahead and "


def generate(cli: Cli, *flags: str) -> dict[str, Any]:
    """The JSON object of one answer."""
    ran = cli("generate", PROMPT, *TOY, "--json", *flags)
    assert ran.status == 0, ran.err
    data: dict[str, Any] = ran.json
    return data


def test_text_goes_to_stdout_and_one_summary_line_to_stderr(cli: Cli) -> None:
    ran = cli("generate", PROMPT, *TOY, "--max-tokens", "40")
    assert ran.status == 0
    assert ran.out == generate(cli, "--max-tokens", "40")["text"] + "\n"
    assert ran.err.startswith("forerun: 40 tokens, ")
    assert ran.err.count("\n") == 1
    for word in ("tokens/s", "steps", "mean acceptance length", "with prediction+suffix+recycling", "--max-tokens"):
        assert word in ran.err


def test_json_has_every_field(cli: Cli) -> None:
    data = generate(cli, "--max-tokens", "40", "--seed", "3")
    assert set(data) == {
        *("text", "token_ids", "finish_reason", "usage", "model", "draft", "verifier", "backend", "seed"),
        "lossy",
        *("timings", "metrics"),
    }
    assert data["usage"] == {"prompt_tokens": len(PROMPT), "completion_tokens": 40, "cached_tokens": 0}
    assert (data["model"], data["backend"], data["verifier"], data["seed"]) == ("toy", "toy", "keyed", 3)
    assert (data["finish_reason"], data["lossy"]) == ("length", False)
    assert bytes(data["token_ids"]).decode() == data["text"]
    assert set(data["timings"]) == {
        *("load_s", "ttft_s", "decode_s", "tokens_per_second", "prompt_tokens_per_second"),
        *("draft_s", "verify_s", "other_s"),
    }
    counters = data["metrics"]["speculative_decoding"]
    assert {
        *("mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram", "num_spec_steps"),
        *("num_accepted_draft_tokens", "num_draft_tokens", "per_position_acceptance_rate"),
    } <= set(counters)
    assert counters["num_accepted_draft_tokens"] > 0
    assert counters["mean_acceptance_length"] == pytest.approx(
        1 + counters["num_accepted_draft_tokens"] / counters["num_spec_steps"]
    )


def test_trace_accounts_for_every_token(cli: Cli) -> None:
    data = generate(cli, "--max-tokens", "40", "--trace")
    assert [token for entry in data["steps"] for token in entry["tokens"]] == data["token_ids"]
    assert (
        sum(len(entry["drafted"]) for entry in data["steps"])
        == (data["metrics"]["speculative_decoding"]["num_draft_tokens"])
    )
    assert all(len(entry["drafted"]) == len(entry["parents"]) for entry in data["steps"])


@pytest.mark.parametrize("temperature", ["0", "0.9"])
@pytest.mark.parametrize("draft", ["ngram", "model:toy", "auto"])
def test_the_text_is_the_same_whatever_drafts(cli: Cli, draft: str, temperature: str) -> None:
    same = ("--max-tokens", "60", "--seed", "11", "--temperature", temperature)
    plain = generate(cli, *same, "--draft", "none")
    drafted = generate(cli, *same, "--draft", draft)
    assert drafted["token_ids"] == plain["token_ids"]
    assert plain["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    assert drafted["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0


def test_a_ratio_rule_can_be_chosen(cli: Cli) -> None:
    flags = ("--max-tokens", "30", "--temperature", "0.9", "--seed", "1")
    data = generate(cli, *flags, "--verifier", "rejection", "--draft", "model:toy")
    assert data["verifier"] == "rejection"
    assert data["usage"]["completion_tokens"] == 30


def test_a_seed_decides_the_text_and_is_reported_when_drawn(cli: Cli) -> None:
    hot = ("--max-tokens", "60", "--temperature", "1.5")
    drawn = generate(cli, *hot)
    again = generate(cli, *hot, "--seed", str(drawn["seed"]))
    other = generate(cli, *hot, "--seed", str(drawn["seed"] + 1))
    assert again["text"] == drawn["text"] != other["text"]


@pytest.mark.parametrize("narrow", [("--top-k", "1"), ("--top-p", "0.0001")], ids=["top-k", "top-p"])
def test_truncation_to_one_token_is_greedy(cli: Cli, narrow: tuple[str, str]) -> None:
    hot = ("--max-tokens", "60", "--temperature", "1.5", "--seed", "5")
    greedy = generate(cli, "--max-tokens", "60")
    assert generate(cli, *hot)["text"] != greedy["text"]
    assert generate(cli, *hot, *narrow)["text"] == greedy["text"]


def test_min_p_of_one_keeps_only_the_likeliest(cli: Cli) -> None:
    hot = ("--max-tokens", "60", "--temperature", "1.5", "--seed", "5", "--logprobs", "1")
    assert not all(_is_likeliest(entry) for entry in generate(cli, *hot)["logprobs"])
    # The toy has ties, and min-p keeps all of them.
    assert all(_is_likeliest(entry) for entry in generate(cli, *hot, "--min-p", "1")["logprobs"])


def _is_likeliest(entry: dict[str, Any]) -> bool:
    return bool(entry["logprob"] == entry["top"][0]["logprob"])


@pytest.mark.parametrize("penalty", ["repetition", "presence", "frequency"])
def test_penalties_change_what_is_said(cli: Cli, penalty: str) -> None:
    flags = ("--max-tokens", "40", f"--{penalty}-penalty", "5", "--ignore-eos")
    data = generate(cli, *flags)
    assert data["token_ids"] != generate(cli, "--max-tokens", "40", "--ignore-eos")["token_ids"]
    assert data["token_ids"] == generate(cli, *flags, "--draft", "none")["token_ids"]


def test_logit_bias_bans_and_forces(cli: Cli) -> None:
    space, x = ord(" "), ord("x")
    assert " " not in generate(cli, "--max-tokens", "30", "--logit-bias", f"{space}=-inf")["text"]
    input_tokens = generate(cli, "--max-tokens", "5", "--logit-bias", f"{x}=1000", "--logit-bias", f"{space}=-2.5")
    assert input_tokens["text"] == "xxxxx"


def test_stop_strings_end_the_text_and_are_cut_from_it(cli: Cli) -> None:
    whole = generate(cli, "--max-tokens", "60")["text"]
    assert " reads" in whole
    data = generate(cli, "--max-tokens", "60", "--stop", "nowhere", "--stop", " reads")
    assert data["text"] == whole[: whole.index(" reads")]
    assert data["finish_reason"] == "stop"


def test_stop_token_ids_end_the_text(cli: Cli) -> None:
    data = generate(cli, "--max-tokens", "60", "--stop-token-id", str(ord(",")), "--stop-token-id", "0")
    assert data["finish_reason"] == "stop"
    assert data["token_ids"][-1] == ord(",")
    assert "," not in data["text"]


def test_ignore_eos_goes_on(cli: Cli) -> None:
    end = ("--max-tokens", "20", "--logit-bias", "256=1000")
    assert generate(cli, *end)["token_ids"] == [256]
    assert generate(cli, *end, "--ignore-eos")["token_ids"] == [256] * 20


def test_logprobs_come_with_alternatives(cli: Cli) -> None:
    data = generate(cli, "--max-tokens", "6", "--logprobs", "2")
    assert [entry["token_id"] for entry in data["logprobs"]] == data["token_ids"]
    for entry in data["logprobs"]:
        assert len(entry["top"]) == 2
        # Greedy: the token chosen is the likeliest.
        assert entry["top"][0] == {"token_id": entry["token_id"], "logprob": entry["logprob"]}


def test_the_budget_is_kept(cli: Cli) -> None:
    flags = ("--max-tokens", "60", "--trace", "--draft", "ngram")
    for size, options in (
        (2, ("--num-speculative-tokens", "2")),
        (3, ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}')),
    ):
        assert max(len(entry["drafted"]) for entry in generate(cli, *flags, *options)["steps"]) == size


def test_vllms_names_choose_the_drafter(cli: Cli) -> None:
    config = {"method": "draft_model", "model": "toy", "num_speculative_tokens": 2}
    assert generate(cli, "--speculative-config", json.dumps(config))["draft"] == "model:toy"
    assert generate(cli, "--speculative-config", '{"model": "toy"}')["draft"] == "model:toy"
    assert generate(cli, "--speculative-config", '{"method": "ngram", "prompt_lookup_min": 2}')["draft"] == "ngram"


def test_a_prediction_saves_steps_and_changes_no_text(cli: Cli, tmp_path: Path) -> None:
    plain = generate(cli, "--max-tokens", "60", "--draft", "none")
    expected = tmp_path / "expected.txt"
    expected.write_text(plain["text"], encoding="utf-8")
    budget = ("--max-tokens", "60", "--num-speculative-tokens", "7")
    for draft in ("auto", "prediction"):
        told = generate(cli, *budget, "--draft", draft, "--prediction", str(expected))
        asked = generate(cli, *budget, "--draft", draft)
        assert told["token_ids"] == asked["token_ids"] == plain["token_ids"]
        steps = [data["metrics"]["speculative_decoding"]["num_steps"] for data in (told, asked)]
        assert steps[0] < steps[1]


def test_a_line_of_a_prompts_file_has_its_own_prediction(cli: Cli, tmp_path: Path) -> None:
    plain = generate(cli, "--max-tokens", "60", "--draft", "none")
    lines = [{"prompt": PROMPT}, {"prompt": PROMPT, "prediction": plain["text"]}]
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    ran = cli("generate", "--prompts", str(asked), *TOY, "--max-tokens", "60", "--draft", "prediction")
    assert ran.status == 0, ran.err
    without, given = [json.loads(line) for line in ran.out.splitlines()]
    assert without["token_ids"] == given["token_ids"] == plain["token_ids"]
    assert given["metrics"]["speculative_decoding"]["num_steps"] < 30


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--prediction", "nowhere.txt"), ("cannot read nowhere.txt",)),
        (("--prediction", "FILE", "--draft", "ngram"), ("the draft ngram ignores `prediction`", "prediction+suffix")),
        (("--prediction", "BYTES"), ("not UTF-8",)),
        (("--prediction", "FILE", "--prompts", "FILE"), ("give each line its own",)),
    ],
)
def test_predictions_that_cannot_be_used(
    cli: Cli, tmp_path: Path, flags: tuple[str, ...], says: tuple[str, ...]
) -> None:
    files = {"FILE": tmp_path / "text", "BYTES": tmp_path / "bytes"}
    files["FILE"].write_text("expected", encoding="utf-8")
    files["BYTES"].write_bytes(b"\xff\xfe")
    question = () if "--prompts" in flags else (PROMPT,)
    ran = cli("generate", *question, *TOY, *(str(files.get(flag, flag)) for flag in flags))
    assert (ran.status, ran.out) == (2, "")
    assert all(words in ran.err for words in says), ran.err


def test_a_prompt_from_standard_input_is_the_same_prompt(cli: Cli) -> None:
    flags = (*TOY, "--max-tokens", "20")
    assert cli("generate", "-", *flags, stdin=PROMPT + "\n").out == cli("generate", PROMPT, *flags).out


def test_a_prompt_a_file_and_standard_input_are_one_prompt(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("the target \n")
    flags = (*TOY, "--json", "--max-tokens", "9", "--seed", "1")
    ran = cli("generate", "Summarize: ", "-f", str(file), "--file", str(file), *flags, stdin="the drafter\n")
    whole = cli("generate", "Summarize: \n\nthe target \n\nthe target \n\nthe drafter", *flags)
    assert (ran.json["token_ids"], ran.json["usage"]) == (whole.json["token_ids"], whole.json["usage"])
    alone = cli("generate", *flags, stdin="the drafter\n").json
    assert alone["usage"]["prompt_tokens"] == len("the drafter")


def test_quiet_leaves_the_answer_alone(cli: Cli, tmp_path: Path) -> None:
    for quiet in ("-q", "--quiet"):
        ran = cli("generate", PROMPT, *TOY, "--max-tokens", "20", quiet, "--threads", "9999")
        assert (ran.status, ran.err) == (0, "")
        assert len(ran.out) == 21
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"prompt": ""}\n')
    ran = cli("generate", "--prompts", str(prompts), *TOY, "-q")
    assert ran.status == 1
    # What is wrong is still said.
    assert ran.err == "forerun: line 2: the prompt is empty; give some text.\n"


def test_more_threads_than_cores_are_a_note(cli: Cli) -> None:
    ran = cli("generate", PROMPT, *TOY, "--max-tokens", "3", "--threads", "1000000")
    assert ran.status == 0
    assert ran.err.startswith("forerun: 1000000 threads are more than there are cores to use here; ")


def test_an_answer_that_fills_the_context_says_so(cli: Cli) -> None:
    ran = cli("generate", "x" * 4090, *TOY, "--max-tokens", "40", "--ignore-eos", "--json")
    assert ran.json["finish_reason"] == "length"
    assert ran.json["usage"]["completion_tokens"] < 40
    assert "cut where the context is full" in ran.err
    assert "--max-tokens" not in ran.err


def test_control_tokens_are_text_unless_special(cli: Cli) -> None:
    flags = (*TOY, "--json", "--max-tokens", "3")
    counts = [
        cli("generate", "a<|endoftext|>", *flags, *more).json["usage"]["prompt_tokens"]
        for more in ((), ("--special",), ("--raw", "--special"))
    ]
    assert counts == [1 + len("<|endoftext|>"), 2, 2]


def test_raw_reads_blank_text_and_the_last_line_end(cli: Cli) -> None:
    flags = (*TOY, "--json", "--max-tokens", "3")
    assert cli("generate", "\n\n", "--raw", *flags).json["usage"]["prompt_tokens"] == 2
    for raw, tokens in (((), 1), (("--raw",), 2)):
        assert cli("generate", "-", *raw, *flags, stdin="a\n").json["usage"]["prompt_tokens"] == tokens
    ran = cli("generate", "", "--raw", *flags)
    assert (ran.status, ran.err) == (2, "forerun: the prompt is empty; give some text.\n")


def test_raw_skips_the_template(cli: Cli) -> None:
    # The toy has no template, so raw is what it does anyway.
    assert generate(cli, "--raw", "--max-tokens", "9")["text"] == generate(cli, "--max-tokens", "9")["text"]


def test_output_goes_to_a_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "answer.txt"
    ran = cli("generate", PROMPT, *TOY, "--max-tokens", "20", "--output", str(path))
    assert (ran.status, ran.out) == (0, "")
    assert path.read_text("utf-8") == cli("generate", PROMPT, *TOY, "--max-tokens", "20").out


def test_color_is_for_terminals(cli: Cli) -> None:
    assert "\x1b" not in cli("generate", PROMPT, *TOY, "--max-tokens", "40", "--color").out
