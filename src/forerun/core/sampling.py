"""The one `choose`: from a prefix and a row of logits to a token.

Plain decoding and every verifier go through here, with the true prefix at every node, so each parameter is exact with
speculation by construction. The order is: padding and penalties, bias, temperature, min-p, top-k, top-p, then the draw.

    repetition penalty r (1909.05858): over ids in prompt or output, logit / r if positive, else logit * r
    presence and frequency: over ids in the output, logit - presence - frequency * count
    min-p m (2407.01082): keep p >= m * max p;  top-k: keep the k largest;  top-p (1904.09751): keep the smallest set of
    most likely ids whose mass reaches top_p, ties to the lower id
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.core.noise import Stream
from forerun.errors import BackendError, SamplingError, quoted

Scores = NDArray[np.float32]

# Looking for the nucleus starts with the ids within these distances of the best, and for the highest scores with the best
# of so many: any values give the same result, these are fast.
_NEAR = (4.0, 12.0, math.inf)
_FOLDS = 64


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
        if self.repetition_penalty == 0:
            raise SamplingError("repetition_penalty is 0; it must be above 0 (1 is off).")

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
    def bends(self) -> bool:
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
    ("repetition_penalty", 0.0, 1e6, "above 0 (1 is off)"),
    ("presence_penalty", -1e6, 1e6, "a number"),
    ("frequency_penalty", -1e6, 1e6, "a number"),
    ("seed", -(2**63), 2**64 - 1, "a 64-bit whole number"),
    ("max_tokens", 1, 2**31, "at least 1 and of 31 bits"),
    ("logprobs", 0, 1000, "between 0 and 1000"),
)


def _is_id(token: Any) -> bool:
    """Whether it can be a token id of some vocabulary."""
    return isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**31


class Prefix(Protocol):
    """The true text before a token: what penalties look at. The next token's position is `length`."""

    @property
    def length(self) -> int: ...

    def seen(self) -> NDArray[np.int64]:
        """Distinct ids in prompt and output."""
        ...

    def output_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Distinct ids in the output, and how often each occurs."""
        ...


def scores(row: Scores, prefix: Prefix, sampling: Sampling, usable: int) -> Scores:
    """Log-weights `[vocab]` of the law that is sampled from: finite where possible, -inf elsewhere. `row` is not changed.

    usable: ids at or past it are padding. At temperature 0 only the largest counts, so nothing is scaled or cut.
    Raises BackendError when the logits are not numbers.
    """
    row = _adjust(row, prefix, sampling, usable)
    _check(row)
    if sampling.greedy:
        return row
    if sampling.temperature != 1.0:
        row = row / np.float32(sampling.temperature)
    return _truncate(row, sampling)


def choose(row: Scores, prefix: Prefix, sampling: Sampling, usable: int, stream: Stream) -> int:
    """The next token: argmax of the scores plus keyed noise at the prefix's length (no noise at temperature 0).

    Raises BackendError when the logits are not numbers.
    """
    if sampling.greedy:
        return _best(row, prefix, sampling, usable)
    return stream.race(scores(row, prefix, sampling, usable), prefix.length)


def law(
    row: Scores, prefix: Prefix, sampling: Sampling, usable: int, out: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """The distribution `[vocab]` that `choose` draws from, in float64; one-hot at temperature 0.

    out: where to write it, if it is dense. Raises BackendError when the logits are not numbers.
    """
    if sampling.greedy:
        hot = np.zeros(len(row))
        hot[_best(row, prefix, sampling, usable)] = 1.0
        return hot
    if sampling.bends or sampling.truncates:
        return softmax(scores(row, prefix, sampling, usable), out)
    return _heated(row, sampling.temperature, usable, out)


def belief(
    row: Scores, prefix: Prefix, sampling: Sampling, usable: int, out: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """The distribution `[vocab]` at temperature 1 and without truncation; penalties, bias and bans stay."""
    if not sampling.bends:
        return _heated(row, 1.0, usable, out)
    kept = _adjust(row, prefix, sampling, usable)
    _check(kept)
    return softmax(kept, out)


def _best(row: Scores, prefix: Prefix, sampling: Sampling, usable: int) -> int:
    """The token of temperature 0."""
    kept = _adjust(row, prefix, sampling, usable) if sampling.bends else row[:usable]
    _check(kept)
    return int(np.argmax(kept))


def _heated(row: Scores, temperature: float, usable: int, out: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """softmax(row / temperature), padding left out: what `scores` and `softmax` give, without their copies."""
    _check(row[:usable])
    law = np.empty(len(row)) if out is None else out
    law[usable:] = 0.0
    if temperature == 1.0:
        law[:usable] = row[:usable]
    else:
        np.divide(row[:usable], np.float32(temperature), out=law[:usable], dtype=np.float32)
    softmax(law[:usable], law[:usable])
    return law


def softmax(kept: NDArray[Any], out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """exp(x - max) / sum, in float64; -inf gives 0. out: where to write it, `kept` itself if need be."""
    # One array from start to end: fresh pages for temporaries of a large vocabulary cost more than the exponentials.
    law: NDArray[np.float64] = np.subtract(kept, float(np.max(kept)), out=out, dtype=np.float64)
    np.exp(law, out=law)
    law /= law.sum()
    return law


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of a token under the model's own distribution (before any sampling parameter), and the best others."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def logprobs(row: Scores, token: int, top: int, usable: int) -> TokenLogprob:
    """Of one token, with the `top` most likely ids; from the raw logits `[vocab]`, as OpenAI's and vLLM's servers report."""
    raw = row[:usable].astype(np.float64)
    best = float(raw.max())
    normalizer = best + math.log(float(np.exp(raw - best).sum()))
    likely: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    if top > 0:
        top = min(top, usable)
        likely = np.argpartition(-raw, top - 1)[:top]
        likely = likely[np.lexsort((likely, -raw[likely]))]
    return TokenLogprob(
        token, float(raw[token]) - normalizer, tuple((int(i), float(raw[i]) - normalizer) for i in likely)
    )


def _adjust(row: Scores, prefix: Prefix, sampling: Sampling, usable: int) -> Scores:
    padded = usable < len(row)
    if not (padded or sampling.penalized or sampling.logit_bias):
        return row
    row = row.copy()
    row[usable:] = -np.inf
    if sampling.repetition_penalty != 1.0:
        ids = prefix.seen()
        values, penalty = row[ids], np.float32(sampling.repetition_penalty)
        row[ids] = np.where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0:
        ids, counts = prefix.output_counts()
        row[ids] -= np.float32(sampling.presence_penalty) + np.float32(sampling.frequency_penalty) * counts.astype(
            np.float32
        )
    for token, bias in sampling.logit_bias.items():
        if 0 <= token < usable:
            row[token] += np.float32(bias)
    return row


def _truncate(row: Scores, sampling: Sampling) -> Scores:
    if sampling.min_p > 0.0:
        row = np.where(row >= row.max() + np.float32(math.log(sampling.min_p)), row, np.float32(-np.inf))
    if 0 < sampling.top_k < len(row):
        row = _only(row, largest(row, sampling.top_k))
    if sampling.top_p < 1.0:
        row = _only(row, _nucleus(row, sampling.top_p))
    return row


def _only(row: Scores, ids: NDArray[np.int64]) -> Scores:
    kept = np.full_like(row, -np.inf)
    kept[ids] = row[ids]
    return kept


def largest(row: Scores, count: int, within: float = math.inf) -> NDArray[np.int64]:
    """The ids of the `count` highest scores, ties to the lower id; none that are more than `within` below the best.

    The row is folded, and the best of each column found: the `count` highest scores are not below the column that is
    `count`th best, so few columns are left to be looked at.
    """
    floor = float(row.max()) - within
    columns = len(row) // _FOLDS
    if columns < 2 * count:
        ids = np.flatnonzero(row >= floor)
    else:
        folded = columns * _FOLDS
        peaks = row[:folded].reshape(_FOLDS, columns).max(axis=0)
        floor = max(floor, float(np.partition(peaks, columns - count)[columns - count]))
        near = np.arange(0, folded, columns)[:, None] + np.flatnonzero(peaks >= floor)
        ids = np.concatenate([near.ravel(), np.arange(folded, len(row))])
        ids = ids[row[ids] >= floor]
    if len(ids) <= count:
        return ids
    values = row[ids]
    return _down_to(ids, values, np.partition(values, len(values) - count)[len(values) - count], count)


def _nucleus(row: Scores, top_p: float) -> NDArray[np.int64]:
    """Smallest set of most likely ids whose mass reaches top_p. Sorts only those near the best if they suffice."""
    ids = np.flatnonzero(row > -np.inf)
    values = row[ids]
    best = float(values.max())
    needed = top_p * float(np.exp(values.astype(np.float64) - best).sum())
    for distance in _NEAR:
        falling = np.sort(values[values >= best - distance])[::-1]
        mass = np.cumsum(np.exp(falling.astype(np.float64) - best))
        if mass[-1] >= needed:
            break
    count = min(int(np.searchsorted(mass, needed)) + 1, len(falling))
    return _down_to(ids, values, falling[count - 1], count)


def _down_to(ids: NDArray[np.int64], values: Scores, last: np.float32, count: int) -> NDArray[np.int64]:
    """The `count` ids whose values are at least `last`, the lower ones of those that equal it."""
    above = ids[values > last]
    return np.concatenate([above, ids[values == last][: count - len(above)]])


def _check(row: Scores) -> None:
    """Before anything is cut: truncation would hide a NaN."""
    if not math.isfinite(float(row.max())):
        raise BackendError(
            "the model's logits are not finite numbers, or every token is banned; check the model file (forerun pull "
            "verifies it) and logit_bias."
        )
