"""`forerun bench` and `forerun cascade` on the toy: tables, JSON, logs, pictures, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conftest import Cli

TOY = ("--backend", "toy")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    entries: list[dict[str, object]] = [
        {"id": "a", "category": "one", "prompt": "the drafter runs ", "answer": "ahead"},
        {"id": "b", "category": "two", "turns": ["what the target ", "and then"], "answer": ["nowhere", 7]},
        {"id": "c", "category": "one", "prompt": "passes are "},
    ]
    path.write_text("\n".join(map(json.dumps, entries)), "utf-8")
    return str(path)


def test_pass_shows_a_table(cli: Cli) -> None:
    ran = cli("bench", "pass", *TOY, "--rows", "2,4", "--context", "16,32", "--repeats", "2")
    assert ran.status == 0, ran.err
    for words in ("Memory delivers", "forerun toy", "T(1) ms", "T(2) ms", "T(4) ms", "v(n) = T(n) / T(1)"):
        assert words in ran.out


def test_pass_as_json(cli: Cli) -> None:
    told = cli("bench", "pass", "--model", "toy", "--rows", "3", "--context", "16", "--repeats", "2", "--json").json
    assert told["model"] == "toy"
    assert told["limits"]["bandwidth"] > 0
    [table] = told["passes"]
    assert set(table["seconds"]) == {"1", "3"}
    assert table["v"]["1"] == 1.0
    assert (table["context"], table["repeats"]) == (16, 2)


def test_methods_compare_on_the_same_text(cli: Cli, prompts: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    ran = cli(
        *("bench", "methods", prompts, *TOY, "--methods", "ngram suffix+recycling", "--max-tokens", "30", "--json"),
        *("--log", str(log)),
    )
    assert ran.status == 0, ran.err
    rows = {(row["category"], row["method"]): row for row in ran.json["rows"]}
    assert {category for category, _ in rows} == {"one", "two", "all"}
    assert rows["all", "none"]["decode_ratio"] == 1.0
    for method in ("none", "ngram", "suffix+recycling"):
        assert (rows["all", method]["prompts"], rows["all", method]["different"]) == (3, 0)
    assert rows["all", "ngram"]["tokens_per_step"] > 1
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert [(line["prompt"], line["method"]) for line in lines][:3] == [
        ("a", "none"),
        ("a", "ngram"),
        ("a", "suffix+recycling"),
    ]
    assert len(lines) == 9


def test_methods_as_a_table_and_fewer_of_each_category(cli: Cli, prompts: str) -> None:
    ran = cli("bench", "methods", prompts, *TOY, "--methods", "ngram", "--max-tokens", "12", "--per-category", "1")
    assert ran.status == 0, ran.err
    rows = [line.split() for line in ran.out.splitlines() if line.split()[:2] == ["all", "ngram"]]
    assert [row[2:4] for row in rows] == [["2", "yes"]]


def test_a_cascade_sweep(cli: Cli, prompts: str, tmp_path: Path) -> None:
    picture, log = tmp_path / "curve.svg", tmp_path / "log.jsonl"
    sweep = (
        "cascade",
        prompts,
        *TOY,
        "--model",
        "toy",
        "--drafter",
        "toy",
        "--rules",
        "v3 chow",
        "--alphas",
        "0.5,0.2",
    )
    ran = cli(*sweep, "--max-tokens", "20", "--picture", str(picture), "--log", str(log), "--json")
    assert ran.status == 0, ran.err
    points = {point["method"]: point for point in ran.json["points"]}
    assert list(points) == [
        *("target", "drafter", "lossless", "plain:0.2", "plain:0.5", "chow:0.2", "chow:0.5", "v3:0.2", "v3:0.5")
    ]
    assert all(point["agreement"] == 1.0 for point in points.values())
    assert points["target"]["score"] == 0.5
    assert points["plain:0.5"]["not_deferred"] > 0
    drawn = ElementTree.parse(picture).getroot()
    lines = [group.get("id") for group in drawn.iter("{http://www.w3.org/2000/svg}g")]
    assert [line for line in lines if line in ("target", "drafter", "lossless", "plain", "chow", "v3")] == [
        *("target", "drafter", "lossless", "plain", "chow", "v3")
    ]
    assert len(log.read_text("utf-8").splitlines()) == 9 * 3
    table = cli(*sweep, "--max-tokens", "8", "--limit", "1")
    assert table.status == 0
    assert [line.split()[0] for line in table.out.splitlines()[1:-1]] == list(points)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("bench", "pass", "--rows", "0"), "--rows is '0'"),
        (("bench", "pass", "--rows", "a"), "--rows is 'a'"),
        (("bench", "pass", "--context", ""), "--context is ''"),
        (("bench", "pass", "--repeats", "0"), "--repeats is 0"),
        (("bench", "pass", "--peer", "vllm"), "unknown peer 'vllm'"),
        (("bench", "methods", "no-such-file"), "cannot read no-such-file"),
        (("bench", "methods", "PROMPTS", "--methods", "nrgam"), "unknown drafter 'nrgam'"),
        (("cascade", "PROMPTS", "--drafter", "toy", "--rules", "v9"), "unknown cascade rule 'v9'"),
        (("cascade", "PROMPTS", "--drafter", "toy", "--alphas", "-1"), "--alphas is '-1'"),
        (("cascade", "PROMPTS", "--drafter", "toy", "--alphas", "x"), "--alphas is 'x'"),
        (("cascade", "PROMPTS", "--model", "toy"), "name one with --drafter"),
        (("cascade", "no-such-file", "--drafter", "toy"), "cannot read no-such-file"),
        (("cascade", "BAD", "--drafter", "toy"), "line 1: not JSON"),
        (("bench", "methods", "BAD"), "line 1: not JSON"),
    ],
)
def test_what_is_refused(cli: Cli, prompts: str, tmp_path: Path, command: tuple[str, ...], words: str) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("no json\n", "utf-8")
    named = [{"PROMPTS": prompts, "BAD": str(bad)}.get(part, part) for part in command]
    ran = cli(*named, *TOY)
    assert (ran.status, ran.out) == (2, "")
    assert words in ran.err
    assert ran.err.count("\n") == 1
