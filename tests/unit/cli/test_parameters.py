"""From options to the library's parameters, and vLLM's names for them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from forerun.cli import parameters
from forerun.config import Config
from forerun.core.sampling import Sampling
from forerun.errors import UsageError


def test_what_is_not_given_is_left_to_the_library() -> None:
    assert parameters.config({"model": None, "draft": "ngram", "num_speculative_tokens": None}) == {"draft": "ngram"}
    assert parameters.sampling({"seed": None, "temperature": 0.5}) == {"temperature": 0.5, "logit_bias": {}}


def test_every_sampling_parameter_has_its_option() -> None:
    from typer.main import get_command

    from forerun.cli.app import app

    given = {parameter.name for parameter in get_command(app).commands["generate"].params}  # type: ignore[attr-defined]
    assert {parameters._OPTION_OF.get(name, name) for name in Sampling.names()} <= given


@pytest.mark.parametrize(
    ("config", "planned"),
    [
        ("{}", {}),
        ('{"method": "ngram"}', {"draft": "ngram"}),
        ('{"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}', None),
        ('{"model": "small"}', {"draft": "model:small"}),
        ('{"method": "draft_model", "model": "small"}', {"draft": "model:small"}),
        ('{"model": "a+b.gguf"}', {"draft": 'model:"a+b.gguf"'}),
        ('{"num_speculative_tokens": 3}', {"num_speculative_tokens": 3}),
    ],
)
def test_speculative_config_speaks_vllm(config: str, planned: dict[str, Any] | None) -> None:
    expected = planned if planned is not None else {"draft": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
    assert parameters.speculative_config(config) == expected
    assert set(expected) <= {field.name for field in fields(Config)}


def test_the_config_wins_over_the_plain_options() -> None:
    given = {"draft": "auto", "num_speculative_tokens": 2, "speculative_config": '{"model": "small"}'}
    assert parameters.config(given) == {"draft": "model:small", "num_speculative_tokens": 2}


@pytest.mark.parametrize(
    "config", ["", "[]", "3", '{"x": 1}', '{"method": 1}', '{"num_speculative_tokens": true}', '{"model": null}']
)
def test_what_the_config_does_not_understand(config: str) -> None:
    with pytest.raises(UsageError, match="speculative-config"):
        parameters.speculative_config(config)


def test_logit_bias() -> None:
    assert parameters.sampling({"logit_bias": ["3=-inf", "4=1.5"]})["logit_bias"] == {3: float("-inf"), 4: 1.5}
    for wrong in ("3", "=1", "x=1", "3=", "3=nan", "3.5=1"):
        with pytest.raises(UsageError, match="is not ID=BIAS"):
            parameters.sampling({"logit_bias": [wrong]})
