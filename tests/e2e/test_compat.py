"""`forerun compat`: what two vocabularies have in common, and what follows, before any weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from forerun.assembly import FoundModel
from forerun.cli.compat import compared, lines
from tests.conftest import Cli


@dataclass
class Words:
    """As much of a tokenizer as is compared."""

    tokens: list[str]
    control: dict[str, int] = field(default_factory=dict)
    bos_id: int | None = None
    eos: str | None = None

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @property
    def control_ids(self) -> frozenset[int]:
        return frozenset(self.control.values())

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset() if self.eos is None else frozenset([self.tokens.index(self.eos)])

    def id_to_token(self, token: int) -> str:
        return self.tokens[token]


def report(ours: Words, theirs: Words) -> dict[str, Any]:
    def never(kv_memory: int | None) -> Any:
        raise AssertionError("weights were loaded")

    sides: list[Any] = [ours, theirs]
    return compared(*(FoundModel(name, side, None, never) for name, side in zip(("big", "small"), sides, strict=True)))


ABC = ["a", "b", "c", "<end>"]


def test_the_same_vocabulary() -> None:
    told = report(Words(ABC, {"<end>": 3}, eos="<end>"), Words(ABC, {"<end>": 3}, eos="<end>"))
    assert (told["consequence"], told["overlap"], told["differing_ids"]) == ("shared", 1.0, 0)
    assert told["target"]["eos"] == [{"id": 3, "token": "<end>"}]
    assert "--draft model:small" in lines(told)[-1]
    other = report(Words(ABC, eos="<end>"), Words(ABC, eos="c"))
    assert "end tokens differ" in other["explanation"]


def test_another_order_needs_a_bridge() -> None:
    told = report(Words(ABC, {"<end>": 3}, eos="<end>"), Words(["<end>", "<pad>", "b", "x"], {"<end>": 0, "<pad>": 1}))
    assert (told["consequence"], told["overlap"], told["differing_ids"]) == ("bridge", 0.5, 4)
    assert told["special"] == {"moved": ["<end>"], "target_only": [], "draft_only": ["<pad>"]}
    text = "\n".join(lines(told))
    for words in (
        "overlap 50.0%",
        "4 of 4 mean something else: 0 'a' / '<end>'",
        "1 under another id: <end>",
        "bridge",
    ):
        assert words in text


def test_nothing_in_common_cannot() -> None:
    told = report(Words(ABC), Words(["x", "y"]))
    assert (told["consequence"], told["overlap"]) == ("cannot", 0.0)
    assert "cannot draft for big" in told["explanation"]


def test_the_command(cli: Cli) -> None:
    ran = cli("compat", "toy", "toy")
    assert ran.status == 0
    assert "257 tokens" in ran.out
    assert ran.err == ""
    assert cli("compat", "toy", "toy", "--json").json["consequence"] == "shared"
    for wrong in (("toy", "no-such-model"), ("toy",), ("toy", str(Path(__file__)))):
        ran = cli("compat", *wrong)
        assert ran.status in (1, 2)
        assert ran.err.count("\n") == 1


@pytest.mark.models
def test_real_pairs(cli: Cli) -> None:
    same = cli("compat", "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "--json")
    assert (same.status, same.json["consequence"], same.json["target"]["rows"]) == (0, "shared", 151936)
    apart = cli("compat", "qwen2.5-coder-0.5b", "smollm2-135m", "--json")
    assert (apart.status, apart.json["consequence"]) == (0, "bridge")
    assert 0.2 < apart.json["overlap"] < 0.4
    assert "<|im_end|>" in apart.json["special"]["moved"]
