"""Whatever is wrong, it is one clear line on stderr and the right exit status, and nothing half-written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forerun.errors import quoted
from forerun.models.catalogue import find
from tests.conftest import Cli, Ran

TOY = ("--backend", "toy")


def refused(ran: Ran, status: int, *words: str, progress: int = 0) -> None:
    """Nothing on stdout, one line on stderr that says all of `words`, after `progress` lines about long jobs."""
    assert ran.status == status, ran.err
    assert ran.out == ""
    lines = ran.err.splitlines()
    assert len(lines) == progress + 1, ran.err
    assert lines[-1].startswith("forerun: ")
    for word in words:
        assert word in lines[-1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--max-tokens", "0"), ("max_tokens is 0", "at least 1")),
        (("--max-tokens", "-1"), ("max_tokens is -1", "at least 1")),
        (("--max-tokens", "many"), ("--max-tokens", "generate --help")),
        (("--temperature", "-1"), ("temperature is -1", "positive")),
        (("--temperature", "nan"), ("temperature is nan", "positive")),
        (("--top-p", "0"), ("top_p is 0", "above 0")),
        (("--top-p", "1.5"), ("top_p is 1.5", "at most 1")),
        (("--min-p", "-0.1"), ("min_p is -0.1",)),
        (("--top-k", "-2"), ("top_k is -2",)),
        (("--repetition-penalty", "0"), ("repetition_penalty is 0",)),
        (("--presence-penalty", "inf"), ("presence_penalty is inf",)),
        (("--stop", ""), ("stop string is empty",)),
        (("--logit-bias", "12"), ("--logit-bias '12'", "ID=BIAS")),
        (("--logit-bias", "12=nan"), ("--logit-bias '12=nan'", "ID=BIAS")),
        (("--logit-bias", "999999=1"), ("logit_bias has the token id 999999", "toy has ids from 0 to 256")),
        (("--logit-bias", "-1=1"), ("logit_bias has the key -1",)),
        (("--stop-token-id", "257"), ("stop_token_ids has the token id 257", "ids from 0 to 256")),
        (("--stop-token-id", "-1"), ("stop_token_ids is [-1]",)),
        (("--seed", "9" * 30), ("seed is 999", "64-bit")),
        (("--max-tokens", "9" * 30), ("max_tokens is 999", "31 bits")),
        (("--context", "9" * 30), ("context is 999", "at most")),
        (("--threads", "0"), ("threads is 0", "at least 1")),
        (("--kv-dtype", "fp8"), ("unknown kv_dtype 'fp8'", "fp16, fp32")),
        (("--stop", "caf\udce9"), ("'caf\\udce9' is not UTF-8 text",)),
        (("--logprobs", "-1", "--json"), ("logprobs is -1",)),
        (("--logprobs", "2"), ("add --json",)),
        (("--trace",), ("add --json",)),
        (("--concurrency", "2"), ("add --prompts",)),
        (("--raw", "--system", "x"), ("--raw", "--system")),
        (("--draft", "nrgam"), ("unknown drafter 'nrgam'", "ngram")),
        (("--draft", "model:"), ("model:NAME",)),
        (("--verifier", "keyd"), ("unknown verifier 'keyd'", "keyed")),
        (("--backend", "gpu"), ("unknown backend 'gpu'", "reference")),
        (("--num-speculative-tokens", "-1"), ("num_speculative_tokens is -1",)),
        (("--speculative-config", "{"), ("--speculative-config is not JSON",)),
        (("--speculative-config", "[]"), ("must be a JSON object",)),
        (("--speculative-config", '{"methd": "ngram"}'), ("'methd'", "method")),
        (("--speculative-config", '{"num_speculative_tokens": "5"}'), ("num_speculative_tokens", "whole number")),
        (("--speculative-config", '{"num_speculative_tokens": 1e999}'), ("the number 1e999 is too large",)),
        (("--speculative-config", '{"num_speculative_tokens": NaN}'), ("NaN is not a JSON value",)),
        (("--speculative-config", '{"method": "ngram", "method": "none"}'), ("'method' stands there twice",)),
        (("--speculative-config", "[" * 100_000), ("nested more than 100 deep",)),
        (("--speculative-config", '{"method": "draft_model"}'), ("needs a model",)),
        (("--speculative-config", '{"method": "ngram", "model": "toy"}'), ("takes no model",)),
        (("--no-such-option",), ("no such option: --no-such-option", "generate --help")),
    ],
    ids=lambda value: quoted(" ".join(value)) if isinstance(value, tuple) else None,
)
def test_a_wrong_option_is_a_usage_error(cli: Cli, flags: tuple[str, ...], words: tuple[str, ...]) -> None:
    backend = () if "--backend" in flags else TOY
    refused(cli("generate", "hello", *backend, *flags), 2, *words)


def test_prompts_that_are_none(cli: Cli) -> None:
    refused(cli("generate", *TOY), 2, "no prompt", "--prompts")
    refused(cli("generate", "", *TOY), 2, "prompt is empty")
    refused(cli("generate", "-", *TOY, stdin=" \n"), 2, "prompt is empty")
    refused(cli("generate", "-", *TOY, stdin=b"caf\xe9"), 2, "not UTF-8", "byte 3")
    refused(cli("generate", "caf\udce9", *TOY), 2, "the argument 'caf\\udce9' is not UTF-8 text")
    refused(cli("generate", "x", "--prompts", "p.jsonl", *TOY), 2, "a prompt and --prompts", "leave one of the two out")
    refused(cli("generate", "-f", "x", "--prompts", "p.jsonl", *TOY), 2, "--file and --prompts", "leave one")


def test_a_prompt_past_the_context(cli: Cli) -> None:
    refused(cli("generate", "x" * 5000, *TOY), 2, "5000 tokens", "4096", "shorten")


def test_commands_that_are_none(cli: Cli) -> None:
    refused(cli("genrate", "hello"), 2, "genrate", "forerun --help")
    refused(cli("generate", "hello", "more"), 2, "more", "generate --help")


def test_a_prompts_file_that_is_not_there_or_empty(cli: Cli, tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing.jsonl", tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    refused(cli("generate", "--prompts", str(missing), *TOY), 2, "missing.jsonl", "no such file")
    refused(cli("generate", "--prompts", str(empty), *TOY), 2, "empty.jsonl", "no prompts")
    refused(cli("generate", "--prompts", str(empty), "--concurrency", "0", *TOY), 2, "--concurrency is 0")


def test_models_that_are_none(cli: Cli, tmp_path: Path) -> None:
    refused(cli("generate", "hello", "--model", "smolm2-135m"), 2, "smolm2-135m", "did you mean smollm2-135m")
    refused(cli("pull", "nothing-like-it"), 2, "nothing-like-it", "smollm2-135m")
    refused(cli("generate", "hello", "--model", str(tmp_path / "none.gguf")), 1, "none.gguf", "check the path")
    refused(cli("generate", "hello", "--model", str(tmp_path)), 1, "config.json")
    notes = tmp_path / "notes.gguf"
    notes.write_text("not a model")
    refused(cli("generate", "hello", "--model", str(notes)), 1, "notes.gguf", "not a GGUF file")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A GGUF file with an architecture that nobody has, and one tensor."""
    import gguf
    import numpy as np

    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "hourglass")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", np.zeros((32, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_an_architecture_that_is_not_run_is_named(cli: Cli, gguf: Path) -> None:
    refused(cli("generate", "hello", "--model", str(gguf)), 1, "hourglass")


@pytest.mark.parametrize("kept", [4, 20, 150, -64])
def test_a_truncated_file(cli: Cli, gguf: Path, kept: int) -> None:
    gguf.write_bytes(gguf.read_bytes()[:kept])
    refused(cli("generate", "hello", "--model", str(gguf)), 1, "model.gguf")


@pytest.mark.parametrize(
    ("size", "word", "checks"), [(-1, "truncated", 0), (0, "SHA-256", 2)], ids=["truncated", "tampered"]
)
def test_a_cached_file_that_is_not_what_was_pulled(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, word: str, checks: int
) -> None:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    entry = find("smollm2-135m")
    path = tmp_path / "models" / entry.file
    path.parent.mkdir()
    with open(path, "wb") as file:
        file.truncate(entry.size + size)
    refused(cli("generate", "hello"), 1, word, "forerun pull smollm2-135m", progress=checks)


@pytest.mark.models
@pytest.mark.parametrize(
    ("draft", "status", "words"),
    [
        ("model:qwen2.5-coder-0.5b@head=8k", 2, ("another vocabulary", "@head", "leave it out")),
        ("model:smollm2-135m@w5", 2, ("'w5'", "@w4", "@head=SIZE")),
        ("model:smollm2-135m@w4@w8", 2, ("'w4'", "twice")),
        ("model:smollm2-135m@head=0", 2, ("no rows",)),
        ("model:smollm2-135m@head=no/such/list.txt", 2, ("no/such/list.txt", "neither a size", "nor a file")),
        ("self:int8", 2, ("nothing in smollm2-135m has more than 8 bits", "self:exit=N")),
        ("self:exit=30", 2, ("30 layers", "1 to 29")),
        ("self:exit=0", 2, ("30 layers", "1 to 29")),
        ("self:int3", 2, ("self:int3", "self:int8, self:int4 and self:exit=N")),
    ],
)
def test_draft_models_that_cannot_be_had(cli: Cli, draft: str, status: int, words: tuple[str, ...]) -> None:
    refused(cli("generate", "hello", "--model", "smollm2-135m", "--draft", draft), status, *words)


def test_a_toy_has_no_weights_to_copy(cli: Cli) -> None:
    refused(cli("generate", "hello", *TOY, "--draft", "self:int4"), 2, "no weights", "self:int4")


def test_an_unwritable_output(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "folder.txt"
    refused(cli("generate", "hello", *TOY, "--output", str(path)), 1, "folder.txt", "choose another file")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk(cli: Cli, tmp_path: Path) -> None:
    refused(cli("generate", "hello", *TOY, "--output", "/dev/full"), 1, "/dev/full", "no space left", "free some")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "hello"}\n')
    refused(cli("generate", "--prompts", str(prompts), *TOY, "--output", "/dev/full"), 1, "no space left")


def test_a_model_that_breaks_while_it_writes(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    from forerun.backends import toy

    good = toy.ToyModel._rows

    def bad(model: toy.ToyModel, kv: toy.ToyKV, *rest: object) -> tuple[object, object]:
        logits, hidden = good(model, kv, *rest)  # type: ignore[arg-type]
        return (np.full_like(logits, np.nan) if len(kv.slots) > 12 else logits), hidden

    monkeypatch.setattr(toy.ToyModel, "_rows", bad)
    ran = cli("generate", "the target ", *TOY, "--draft", "none")
    assert ran.status == 1
    # What there was before it broke is printed.
    assert ran.out == "re\n"
    assert ran.err.splitlines()[-1].startswith("forerun: the model's logits are not finite numbers")


def test_a_bug_is_one_line_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("first line\nsecond line")

    monkeypatch.setattr("forerun.llm.build", broken)
    refused(cli("generate", "hello", *TOY), 70, "ZeroDivisionError: first line second line", "FORERUN_DEBUG=1")
    monkeypatch.setenv("FORERUN_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli("generate", "hello", *TOY)


def test_out_of_memory_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("forerun.llm.build", full)
    refused(cli("generate", "hello", *TOY), 1, "out of memory", "smaller model")


def test_an_interrupted_pull_says_that_it_can_go_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("forerun.models.pull", interrupted)
    refused(cli("pull", "smollm2-135m"), 130, "what arrived is kept", "forerun pull smollm2-135m")
