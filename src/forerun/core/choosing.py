"""The one `choose`: from a prefix and a row of logits to a token.

Plain decoding and every verifier go through here, with the true prefix at every node, so each parameter is exact with
speculation by construction. The order is: padding, constraints, penalties, bias, temperature, min-p, top-k, top-p, then the
draw.

    repetition penalty r (1909.05858): over ids in prompt or output, logit / r if positive, else logit * r
    presence and frequency: over ids in the output, logit - presence - frequency * count
    constraint: ids that may not follow the prefix (a grammar, the end of a token budget) are impossible
    min-p m (2407.01082): keep p >= m * max p;  top-k: keep the k largest;  top-p (1904.09751): keep the smallest set of
    most likely ids whose mass reaches top_p, ties to the lower id
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.core.noise import Stream
from forerun.core.sampling import Sampling
from forerun.core.truncation import Scores, truncate
from forerun.errors import BackendError


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

    def allowed(self) -> NDArray[np.bool_] | None:
        """`[ids]`, whether each may follow; None where all may. Ids past its end may not."""
        ...


def scores(row: Scores, prefix: Prefix, sampling: Sampling, usable: int) -> Scores:
    """Log-weights `[vocab]` of the distribution that is sampled from: finite where possible, -inf elsewhere; a new array.

    usable: ids at or past it are padding. At temperature 0 only the largest counts, so nothing is scaled or cut.
    Raises BackendError when the logits are not numbers.
    """
    row = _adjust(row, prefix, sampling, usable)
    _check(row)
    if sampling.greedy:
        return row
    if sampling.temperature != 1.0:
        row = row / np.float32(sampling.temperature)
    return truncate(row, sampling)


def choose(row: Scores, prefix: Prefix, sampling: Sampling, usable: int, stream: Stream) -> int:
    """The next token: argmax of the scores plus keyed noise at the prefix's length (no noise at temperature 0).

    Raises BackendError when the logits are not numbers.
    """
    if sampling.greedy:
        return _best(row, prefix, sampling, usable)
    return stream.race(scores(row, prefix, sampling, usable), prefix.length)


def probs(
    row: Scores, prefix: Prefix, sampling: Sampling, usable: int, out: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """The distribution `[vocab]` that `choose` draws from, in float64; one-hot at temperature 0.

    out: where to write it, if it is dense. Raises BackendError when the logits are not numbers.
    """
    if sampling.greedy:
        hot = np.zeros(len(row))
        hot[_best(row, prefix, sampling, usable)] = 1.0
        return hot
    if sampling.adjusts or sampling.truncates or prefix.allowed() is not None:
        return softmax(scores(row, prefix, sampling, usable), out)
    return _tempered(row, sampling.temperature, usable, out)


def untruncated_probs(
    row: Scores, prefix: Prefix, sampling: Sampling, usable: int, out: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """The distribution `[vocab]` at temperature 1 and without truncation; penalties, bias and bans stay."""
    if not sampling.adjusts and prefix.allowed() is None:
        return _tempered(row, 1.0, usable, out)
    kept = _adjust(row, prefix, sampling, usable)
    _check(kept)
    return softmax(kept, out)


def _best(row: Scores, prefix: Prefix, sampling: Sampling, usable: int) -> int:
    """The token of temperature 0."""
    adjusts = sampling.adjusts or prefix.allowed() is not None
    kept = _adjust(row, prefix, sampling, usable) if adjusts else row[:usable]
    _check(kept)
    return int(np.argmax(kept))


def _tempered(row: Scores, temperature: float, usable: int, out: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """softmax(row / temperature), padding left out: what `scores` and `softmax` give, without their copies."""
    _check(row[:usable])
    result = np.empty(len(row)) if out is None else out
    result[usable:] = 0.0
    if temperature == 1.0:
        result[:usable] = row[:usable]
    else:
        np.divide(row[:usable], np.float32(temperature), out=result[:usable], dtype=np.float32)
    softmax(result[:usable], result[:usable])
    return result


def softmax(kept: NDArray[Any], out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """exp(x - max) / sum, in float64; -inf gives 0. out: where to write it, `kept` itself if need be."""
    # One array from start to end: fresh pages for temporaries of a large vocabulary cost more than the exponentials.
    result: NDArray[np.float64] = np.subtract(kept, float(np.max(kept)), out=out, dtype=np.float64)
    np.exp(result, out=result)
    result /= result.sum()
    return result


def top1_probability(row: Scores, temperature: float) -> float:
    """The probability of the likeliest token of a row `[vocab]` at a temperature, at least 1 (below, every row has one near 1).

    0 where the logits are not numbers.
    """
    best = row.max()
    if not np.isfinite(best):
        return 0.0
    tempered = row - best
    tempered /= np.float32(max(1.0, temperature))
    return 1.0 / float(np.exp(tempered, out=tempered).sum())


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
    padded, allowed = usable < len(row), prefix.allowed()
    if not (padded or sampling.penalized or sampling.logit_bias or allowed is not None):
        return row
    row = row.copy()
    row[usable:] = -np.inf
    if allowed is not None:
        row[len(allowed) :] = -np.inf
        row[: len(allowed)][~allowed[: len(row)]] = -np.inf
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


def _check(row: Scores) -> None:
    """Before anything is cut: truncation would hide a NaN."""
    if not math.isfinite(float(row.max())):
        raise BackendError(
            "the model's logits are not finite numbers, or every token is banned; check the model file (forerun pull "
            "verifies it) and logit_bias."
        )
