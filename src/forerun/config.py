"""What a user can ask for: the fields of the command line, of configuration files and of `LLM.load`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forerun.errors import UsageError, quoted, unknown
from forerun.models.catalogue import DEFAULT_MODEL

if TYPE_CHECKING:
    from forerun.core.protocols import Controller, Drafter, Verifier
    from forerun.drafters.plugins import Factory
    from forerun.models.progress import Progress

BACKENDS = ("auto", "cpu", "reference", "toy")
VERIFIERS = ("keyed", "rejection", "block", "traversal", "kseq", "typical")
CONTROLLERS = ("auto", "fixed", "goodput", "heuristic")
REMEMBERED = ("nothing", "matrix", "texts")

_CHOICES = {
    "backend": BACKENDS,
    "verifier": VERIFIERS,
    "controller": CONTROLLERS,
    "remember": REMEMBERED,
    "kv_dtype": ("fp16", "fp32"),
    "quantize": ("w8", "w4"),
}
# What may be handed over as an object, and what such an object has (core.protocols).
PARTS = {
    "draft": ("name", "needs", "open", "propose", "close"),
    "verifier": ("name", "exact", "keyed", "verify"),
    "controller": ("name", "nodes", "asks", "plan", "trim", "observe", "forget"),
}
# Whole numbers and the range of each.
_NUMBERS = {
    "num_speculative_tokens": (0, 1024),
    "prompt_lookup_min": (1, 1024),
    "prompt_lookup_max": (1, 1024),
    "max_sequences": (1, 2**16),
    "keep_prefixes": (0, 2**16),
    "threads": (1, 2**31),
    "context": (1, 2**31),
    "kv_memory": (1, 2**60),
}


@dataclass(frozen=True)
class Config:
    """What to build. None stands for the default of any field. Raises UsageError for a value that nothing here knows.

    model: a name of the catalogue, a GGUF file, a Hugging Face folder or a hub repository.
    draft: drafters in the language of `drafters.grammar`, or `auto`; or a drafter, or a function that makes one for this
        target (see `drafters.plugins`). other_drafts: more of them, which single requests may choose.
    backend: of target and draft models: `auto` is the fastest one that runs here.
    verifier: the acceptance rule, by name or as an object.
    cascade: `RULE:ALPHA`, a lossy rule (see cascade.mixtures) that mixes the distributions of target and draft model; one
        for each stage of `model:a<model:b`, from the target down, with commas. `plain:ALPHA` is the cascade without
        speculation (see cascade.model). None is lossless.
    controller: by name or as an object: `fixed` drafts the same number of nodes always, `goodput` what pays by measured
        costs, `heuristic` two more after a draft that was accepted whole and one less otherwise; `auto` is `fixed` where
        num_speculative_tokens or a cascade is given, else `goodput`.
    num_speculative_tokens: nodes drafted a step, at most; None is the controller's own choice.
    prompt_lookup_min, prompt_lookup_max: shortest and longest n-gram of `ngram`.
    max_sequences: requests that run at once. keep_prefixes: ended texts whose KV is kept for the next turn.
    prefill_slowdown: how many times as long a step may take, by measured costs, when a prompt is read beside texts that are
        being written; None reads as much as at any other time.
    threads: None is as many as there are cores to use; more than these are never started.
    context: most tokens of a text; None is the model's own.
    kv_dtype, quantize: of the cpu backend, see `backends.cpu.options`.
    kv_memory: bytes that keys and values of target and draft models may take together; None is most of what is free.
    memory: a file of earlier texts for `suffix` to draft from (`forerun memory build`), read, and written if `remember`
        says so.
    remember: what is kept for later runs: `nothing`; `matrix`, of `recycling`, which holds no text; or `texts` too, of
        prompts and answers, in `memory` or else in a file of the user's cache.
    """

    model: str = DEFAULT_MODEL
    draft: str | Drafter | Factory = "auto"
    other_drafts: Sequence[str] = ()
    backend: str = "auto"
    verifier: str | Verifier = "keyed"
    cascade: str | None = None
    controller: str | Controller = "auto"
    num_speculative_tokens: int | None = None
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 4
    max_sequences: int = 8
    keep_prefixes: int = 1
    prefill_slowdown: float | None = None
    threads: int | None = None
    context: int | None = None
    kv_dtype: Literal["fp16", "fp32"] = "fp16"
    kv_memory: int | None = None
    quantize: Literal["w8", "w4"] | None = None
    memory: Path | None = None
    remember: str = "matrix"
    progress: Progress | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                object.__setattr__(self, field.name, field.default)
            elif field.name != "progress":
                object.__setattr__(self, field.name, _checked(field.name, value))

    @property
    def cascade_rules(self) -> list[tuple[str, float]]:
        """Rule and alpha of each stage of `cascade`, from the target down. Raises UsageError where it is not of that form."""
        rules = []
        for stage in (self.cascade or "").split(","):
            rule, colon, alpha = stage.partition(":")
            try:
                if not colon:
                    raise ValueError
                rules.append((rule.strip().lower(), float(alpha)))
            except ValueError:
                raise UsageError(
                    f"the cascade {self.cascade!r} is not RULE:ALPHA, such as v3:0.5, chow:0.3 or plain:0.3."
                ) from None
        return rules


def _checked(name: str, value: Any) -> Any:
    """The value of a field, a path as the field has it. Raises UsageError for another kind, or one out of range."""
    if name in _NUMBERS:
        least, most = _NUMBERS[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"{name} is {quoted(value)}; it must be a whole number.")
        if not least <= value <= most:
            wanted = f"at least {least}" if value < least else f"at most {most}"
            raise UsageError(f"{name} is {quoted(value)}; it must be {wanted}.")
        return value
    if name == "prefill_slowdown":
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 1:
            raise UsageError(f"{name} is {quoted(value)}; it must be a number above 1.")
        return float(value)
    if name in PARTS and not isinstance(value, str):
        # A class is not one of its objects; for a draft it may be what makes one.
        missing = [part for part in PARTS[name] if isinstance(value, type) or not hasattr(value, part)]
        if missing and not (name == "draft" and callable(value)):
            raise UsageError(
                f"{name} is {quoted(value)}; it must be a name, or an object with {', '.join(PARTS[name])}."
            )
        return value
    if name == "other_drafts":
        if isinstance(value, str) or not all(isinstance(draft, str) for draft in value):
            raise UsageError(f"other_drafts is {quoted(value)}; it must be a list of drafts.")
        return tuple(value)
    if name == "memory" and isinstance(value, str | Path):
        return Path(value)
    if name == "model" and isinstance(value, Path):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} is {quoted(value)}; it must be {'a path' if name == 'memory' else 'text'}.")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise unknown(name, value, _CHOICES[name])
    return value
