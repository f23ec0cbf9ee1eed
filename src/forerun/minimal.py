"""All of speculative decoding in plain numpy: a text to learn from, and an oracle for the tests.

A *model* here is a function from tokens to the distribution of the next one, an array of probabilities `[vocab]`. The target's
is p, the drafter's q. Everything forerun does elsewhere is this page with trees, batches and a KV cache.

    python -m forerun.minimal
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Probs = NDArray[Any]
Model = Callable[[Sequence[int]], Probs]


class Rng:
    """Randomness. Tests replace it by one that goes through every result."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def accept(self, probability: Any) -> bool:
        """True with the given probability."""
        return bool(self._rng.random() < probability)

    def sample(self, weights: Probs) -> int:
        """A token, with probability proportional to its weight."""
        ends = np.cumsum(weights)
        return int(np.searchsorted(ends, self._rng.random() * ends[-1], side="right"))


# Plain decoding: ask the target, draw, append. One pass of the target per token.


def plain(target: Model, tokens: list[int], count: int, rng: Rng) -> list[int]:
    for _ in range(count):
        tokens = [*tokens, rng.sample(target(tokens))]
    return tokens


# Speculative decoding: a cheap drafter runs ahead, then the target looks at all its tokens in one pass. (Here it is
# called once per position; a transformer gives all these distributions at once, and that is the whole gain.)


def speculative(
    target: Model, drafter: Model, tokens: list[int], count: int, ahead: int, rng: Rng
) -> tuple[list[int], int]:
    """At least `count` more tokens, distributed as those of `plain`, and how many passes of the target it took."""
    wanted, passes = len(tokens) + count, 0
    while len(tokens) < wanted:
        tokens = verify(target, tokens, draft(drafter, tokens, ahead, rng), rng)
        passes += 1
    return tokens, passes


def draft(drafter: Model, tokens: list[int], ahead: int, rng: Rng) -> list[tuple[int, Probs]]:
    """The drafter's next tokens, each with the distribution q from which it was drawn."""
    drafted: list[tuple[int, Probs]] = []
    for _ in range(ahead):
        q = drafter([*tokens, *(token for token, _ in drafted)])
        drafted.append((rng.sample(q), q))
    return drafted


def verify(target: Model, tokens: list[int], drafted: list[tuple[int, Probs]], rng: Rng) -> list[int]:
    """Keep a drafted x with probability min(1, p / q). At the first refusal draw from what q lacked, (p - q)+, and stop.

    Why the result has the distribution p: x is drafted and kept with probability q min(1, p / q) = min(p, q). Refusals happen
    with probability sum (p - q)+ and then add exactly (p - q)+. Together min(p, q) + (p - q)+ = p.
    """
    for token, q in drafted:
        p = target(tokens)
        if not rng.accept(min(1, p[token] / q[token])):
            return [*tokens, rng.sample(np.maximum(p - q, 0))]
        tokens = [*tokens, token]
    # All kept: the pass has also given the distribution after the last drafted token, so one more comes for free.
    return [*tokens, rng.sample(target(tokens))]


# The keyed way: all noise is a function of the seed and the position. A draw is argmax(log p + Gumbel noise), which has
# the distribution p. The target then has *one* token for each position, whoever asks: plain decoding, or a verifier earlier. So
# a draft can only change how many passes it takes, never the text; and a drafter that uses the same noise often agrees.


def choose(probs: Probs, seed: int, position: int) -> int:
    noise = np.random.default_rng((seed, position)).gumbel(size=len(probs))
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(probs) + noise))


def keyed_plain(target: Model, tokens: list[int], count: int, seed: int) -> list[int]:
    for _ in range(count):
        tokens = [*tokens, choose(target(tokens), seed, len(tokens))]
    return tokens


def keyed_speculative(
    target: Model, drafter: Model, tokens: list[int], count: int, ahead: int, seed: int
) -> tuple[list[int], int]:
    """Exactly the text of `keyed_plain`, and how many passes of the target it took."""
    wanted, passes = len(tokens) + count, 0
    while len(tokens) < wanted:
        drafted = keyed_plain(drafter, tokens, ahead, seed)[len(tokens) :]
        tokens = keyed_verify(target, tokens, drafted, seed)
        passes += 1
    return tokens[:wanted], passes


def keyed_verify(target: Model, tokens: list[int], drafted: Sequence[int], seed: int) -> list[int]:
    """Take the target's own token at each position, for as long as the draft had foreseen it."""
    for guess in [*drafted, None]:
        token = choose(target(tokens), seed, len(tokens))
        tokens = [*tokens, token]
        if token != guess:
            break
    return tokens


def _demo() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    count, ahead = 5_000, 4
    text, passes = speculative(lambda tokens: p, lambda tokens: q, [0], count, ahead, Rng(0))
    share = np.bincount(text[1:], minlength=3) / (len(text) - 1)
    print(f"target's p    {p}\nspeculative   {share.round(3)}  {(len(text) - 1) / passes:.2f} tokens per pass")
    same = keyed_plain(lambda tokens: p, [0], count, seed=0)
    text, passes = keyed_speculative(lambda tokens: p, lambda tokens: q, [0], count, ahead, seed=0)
    share = np.bincount(text[1:], minlength=3) / count
    print(f"keyed         {share.round(3)}  {count / passes:.2f} tokens per pass, same text as plain: {text == same}")


if __name__ == "__main__":
    _demo()
