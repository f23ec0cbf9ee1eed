"""Sampling parameters: how a request's tokens are chosen, and when it ends. `core.choosing` has the order of their use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from forerun.errors import SamplingError, quoted


@dataclass(frozen=True)
class Sampling:
    """How a request's tokens are chosen and when it ends. Raises SamplingError for a value outside its range.

    None stands for the default of any parameter; for seed, max_tokens and logprobs it is a value of its own, see below.

    temperature: 0 is greedy, and so is all below 1e-5, where scores would overflow. top_k: 0 is off.
    seed: None draws one at random, reported with the result.
    max_tokens: None is as many as the context holds. logprobs: None is off, N adds the N most likely alternatives.
    stop: strings that end the text, cut from it. stop_token_ids end it too, beside the model's own end tokens.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = 256
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for given in fields(self):
            if getattr(self, given.name) is None and given.name not in _OPTIONAL:
                made = given.default_factory
                object.__setattr__(self, given.name, given.default if made is MISSING else made())
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        self._check_numbers()
        self._check_lists()

    def _check_numbers(self) -> None:
        for name, low, high, wanted in _RANGES:
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise SamplingError(f"{name} is {quoted(value)}; it must be {wanted}.")
            if name in _WHOLE and not isinstance(value, int):
                raise SamplingError(f"{name} is {quoted(value)}; it must be a whole number.")
        if self.top_p == 0:
            raise SamplingError("top_p is 0; it must be above 0 and at most 1 (use temperature 0 for greedy decoding).")

    def _check_lists(self) -> None:
        if not isinstance(self.ignore_eos, bool):
            raise SamplingError(f"ignore_eos is {quoted(self.ignore_eos)}; it must be true or false.")
        if not isinstance(self.stop, Sequence) or any(not isinstance(text, str) for text in self.stop):
            raise SamplingError(f"stop is {quoted(self.stop)}; it must be a text or a list of texts.")
        if "" in self.stop:
            raise SamplingError("a stop string is empty; give at least one character.")
        ids = self.stop_token_ids
        if not isinstance(ids, Sequence) or isinstance(ids, str | bytes) or not all(map(_is_id, ids)):
            raise SamplingError(f"stop_token_ids is {quoted(ids)}; it must be a list of token ids.")
        if not isinstance(self.logit_bias, Mapping):
            raise SamplingError(f"logit_bias is {quoted(self.logit_bias)}; it must map token ids to numbers.")
        for token, bias in self.logit_bias.items():
            if not _is_id(token):
                raise SamplingError(f"logit_bias has the key {quoted(token)}; keys are token ids.")
            number = isinstance(bias, int | float) and not isinstance(bias, bool)
            if not number or not (-1e6 <= bias <= 1e6 or bias == -math.inf):
                raise SamplingError(
                    f"logit_bias of token {token} is {quoted(bias)}; it must be a number (-inf bans a token)."
                )

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5

    @property
    def penalized(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed one by one, before temperature and truncation."""
        return self.penalized or bool(self.logit_bias)

    @property
    def truncates(self) -> bool:
        """Whether unlikely tokens are cut off."""
        return self.min_p > 0.0 or self.top_k > 0 or self.top_p < 1.0

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))


# Where None is a value of its own, and not the default.
_OPTIONAL = frozenset({"seed", "max_tokens", "logprobs"})
_WHOLE = frozenset({"top_k", "max_tokens", "logprobs", "seed"})
_RANGES: tuple[tuple[str, float, float, str], ...] = (
    ("temperature", 0.0, 1e6, "0 (greedy) or a positive number"),
    ("top_k", 0, 2**31, "0 (off) or a positive whole number of 31 bits"),
    ("top_p", 0.0, 1.0, "above 0 and at most 1"),
    ("min_p", 0.0, 1.0, "between 0 and 1"),
    ("repetition_penalty", 1e-6, 1e6, "between 1e-6 and 1e6 (1 is off)"),
    ("presence_penalty", -1e6, 1e6, "a number"),
    ("frequency_penalty", -1e6, 1e6, "a number"),
    ("seed", -(2**63), 2**64 - 1, "a 64-bit whole number"),
    ("max_tokens", 1, 2**31, "at least 1 and of 31 bits"),
    ("logprobs", 0, 1000, "between 0 and 1000"),
)


def _is_id(token: Any) -> bool:
    """Whether it can be a token id of some vocabulary."""
    return isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**31
