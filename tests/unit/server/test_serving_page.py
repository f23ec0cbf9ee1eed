"""The page about serving names every field, every option and every metric, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from forerun.server.schema.asking import Speculation
from forerun.server.schema.chat import ChatRequest
from forerun.server.schema.completions import CompletionRequest
from forerun.server.schema.texts import DetokenizeRequest, TemplateRequest, TokenizeRequest
from tests.serving import Client

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "serving.md").read_text("utf-8")


def fields(section: str) -> set[str]:
    body = PAGE.split(section, 1)[1].split("\n#")[0]
    rows = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}


def test_every_field_is_told() -> None:
    both = fields("### Both kinds")
    chat, text = set(ChatRequest.model_fields), set(CompletionRequest.model_fields)
    assert both | fields("### `/v1/chat/completions`") == chat
    assert both | fields("### `/v1/completions`") == text
    assert both == chat & text - {"logprobs"}
    others = {name for body in (TokenizeRequest, DetokenizeRequest, TemplateRequest) for name in body.model_fields}
    assert fields("### `/tokenize`") == others
    assert fields("## Speculation") == set(Speculation.model_fields)


def test_every_option_is_told() -> None:
    from forerun.cli.app import app

    commands: Any = typer.main.get_command(app)
    known = {option for parameter in commands.commands["serve"].params for option in parameter.opts}
    told = set(re.findall(r"`?(--[a-z][\w-]*)", PAGE))
    assert told <= known
    shared = {option for parameter in commands.commands["generate"].params for option in parameter.opts}
    assert {option for option in known - shared if option.startswith("--")} <= told


def test_every_metric_is_told(client: Client) -> None:
    text = client.get("/metrics").text
    shown = set(re.findall(r"^# TYPE (?:vllm:)?([\w:]+)", text, re.MULTILINE))
    shown = {name.removeprefix("forerun_spec") for name in shown if not name.endswith("_created")}
    for name in shown:
        assert name.removeprefix("_decode") in PAGE, name


@pytest.mark.parametrize("path", ["examples/serve/forerun.service", "examples/serve/compose.yaml"])
def test_the_examples_use_options_that_exist(path: str) -> None:
    from forerun.cli.app import app

    commands: Any = typer.main.get_command(app)
    known = {option for parameter in commands.commands["serve"].params for option in parameter.opts}
    command = (ROOT / path).read_text("utf-8").split("forerun serve", 1)[1].splitlines()[0]
    assert set(re.findall(r"--[a-z][\w-]*", command)) <= known
