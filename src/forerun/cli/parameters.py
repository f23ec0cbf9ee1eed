"""From a command's options, or from JSON, to the library's parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forerun.cli.activity import Activity, Pausing
from forerun.cli.files import reading
from forerun.cli.json_text import parse
from forerun.cli.output import complain
from forerun.cli.sizes import size
from forerun.errors import UsageError, quoted

if TYPE_CHECKING:
    from forerun.llm import LLM

# Sampling's name for an option, where the option is named otherwise.
_OPTION_OF = {"stop_token_ids": "stop_token_id"}

# Fields of the config that have an option of the same name.
_FIELDS = (
    "model",
    "draft",
    "verifier",
    "cascade",
    "controller",
    "memory",
    "remember",
    "num_speculative_tokens",
    "backend",
    "threads",
    "context",
    "kv_dtype",
    "kv_memory",
    "quantize",
)

# A token id as a key of a JSON object.
_ID = re.compile(r"[0-9]{1,10}")

# vLLM's names, and the config's where they differ. Those mapped to None choose the drafter.
_CONFIG = {
    "method": None,
    "model": None,
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_min": "prompt_lookup_min",
    "prompt_lookup_max": "prompt_lookup_max",
}


def sampling(params: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters among a command's options, checked. Raises SamplingError or UsageError."""
    from forerun.core.sampling import Sampling

    chosen: dict[str, Any] = {name: params.get(_OPTION_OF.get(name, name)) for name in Sampling.names()}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    chosen["logit_bias"] = dict(_bias(text) for text in params.get("logit_bias") or ())
    Sampling(**chosen)
    return chosen


def sampling_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters as JSON has them: what is null is left out, and the keys of `logit_bias` are texts.

    Raises SamplingError for what no model could be asked with.
    """
    from forerun.core.sampling import Sampling

    chosen = {name: value for name, value in values.items() if value is not None}
    bias = chosen.get("logit_bias")
    if isinstance(bias, Mapping):
        chosen["logit_bias"] = {int(key) if _ID.fullmatch(key) else key: value for key, value in bias.items()}
    Sampling(**chosen)
    return chosen


def load(params: Mapping[str, Any], **more: Any) -> LLM:
    """The model that a command's options ask for, with `more` fields of the config. Raises what `LLM.load` raises."""
    chosen, quiet = config(params) | more, bool(params.get("quiet"))
    from forerun.llm import LLM
    from forerun.models import DEFAULT_MODEL
    from forerun.models.progress import QuietProgress, TerminalProgress

    with Activity(quiet) as activity:
        progress = Pausing(activity, QuietProgress() if quiet else TerminalProgress())
        activity.say(f"loading {chosen.get('model', DEFAULT_MODEL)}")
        try:
            llm = LLM.load(progress=progress, **chosen)
        except KeyboardInterrupt:
            activity.clear()
            complain("interrupted before anything was written; a pull goes on from where it stopped.")
            raise
    if not quiet:
        for line in llm.assembly.notes:
            complain(line)
    return llm


def config(params: Mapping[str, Any]) -> dict[str, Any]:
    """The `config.Config` fields among a command's options; what is not given is left out. Raises UsageError."""
    chosen = {name: params[name] for name in _FIELDS if params.get(name) is not None}
    if (room := chosen.get("kv_memory")) is not None:
        chosen["kv_memory"] = size(room, "--kv-memory")
    if (config := params.get("speculative_config")) is not None:
        chosen |= speculative_config(config)
    return chosen


def named_files(params: Mapping[str, Any]) -> list[str]:
    """What stands for models and heads among a command's options, some of which are files. Raises UsageError."""
    chosen = config(params)
    return [chosen.get("model") or "", *re.split(r'[|,+><()":@=]', chosen.get("draft", ""))]


def prediction(params: Mapping[str, Any]) -> str | None:
    """The text of `--prediction`. Raises UsageError for a file that cannot be read."""
    path = params.get("prediction")
    if path is None:
        return None
    with reading(path):
        text: str = path.read_text(encoding="utf-8-sig")
    return text


def speculative_config(text: str) -> dict[str, Any]:
    """Config fields from a JSON object with vLLM's names. Raises UsageError, naming what is not understood."""
    try:
        config = parse(text)
    except ValueError as error:
        raise UsageError(f"--speculative-config is not JSON ({error}); {_example()}") from error
    if not isinstance(config, dict):
        raise UsageError(f"--speculative-config must be a JSON object; {_example()}")
    if unknown := sorted(config.keys() - _CONFIG.keys()):
        raise UsageError(f"--speculative-config has no {quoted(unknown[0])}; it knows {', '.join(_CONFIG)}.")
    chosen: dict[str, Any] = {}
    for key, value in config.items():
        name = _CONFIG[key]
        wanted = str if name is None else int
        if not isinstance(value, wanted) or isinstance(value, bool):
            kind = "text" if wanted is str else "a whole number"
            raise UsageError(f"{key} in --speculative-config is {quoted(value)}; it must be {kind}.")
        if name is not None:
            chosen[name] = value
    if (draft := _drafter(config)) is not None:
        chosen["draft"] = draft
    return chosen


def _drafter(config: Mapping[str, Any]) -> str | None:
    """`method` and `model` as vLLM reads them: a model alone is a draft model."""
    method, model = config.get("method"), config.get("model")
    if method in (None, "draft_model") and model is not None:
        from forerun.drafters.grammar import Single

        return str(Single("model", model))
    if method == "draft_model":
        raise UsageError('method draft_model in --speculative-config needs a model; add "model": "NAME".')
    if model is not None:
        raise UsageError(f"method {method} in --speculative-config takes no model; leave one of the two out.")
    return method


def _bias(text: str) -> tuple[int, float]:
    token, equals, bias = text.partition("=")
    try:
        if not equals or math.isnan(float(bias)):
            raise ValueError
        return int(token), float(bias)
    except ValueError:
        raise UsageError(f"--logit-bias {quoted(text)} is not ID=BIAS, such as 1234=-2.5 or 1234=-inf.") from None


def _example() -> str:
    return """try '{"method": "ngram", "num_speculative_tokens": 5}'."""
