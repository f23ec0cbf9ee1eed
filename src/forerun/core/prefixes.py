"""KV of ended requests, kept for the next one that starts with the same tokens: the next turn of a chat.

Reuse changes no bit of what follows where a backend is batch-invariant; elsewhere nobody asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.protocols import KV, ModelInfo

# Cutting back and re-reading costs about as much as a short prompt: shorter matches are not worth an entry.
_SHORTEST = 16


class Prefixes:
    """The last `capacity` texts and their KV in a model; the oldest is dropped first. None where reuse would show."""

    def __init__(self, capacity: int, info: ModelInfo) -> None:
        self._capacity = capacity if info.batch_invariant and info.rollback else 0
        self._held: list[tuple[tuple[int, ...], KV]] = []

    def __len__(self) -> int:
        return len(self._held)

    def take(self, prompt: Sequence[int]) -> KV | None:
        """A KV that has read the longest known start of `prompt`, but never its last token, whose logits are needed."""
        found = [(_common(tokens, prompt[:-1]), index) for index, (tokens, _) in enumerate(self._held)]
        length, index = max(found, default=(0, 0))
        if length < _SHORTEST:
            return None
        _, kv = self._held.pop(index)
        kv.truncate(length)
        return kv

    def put(self, tokens: Sequence[int], kv: KV) -> None:
        """Keep a KV that has read `tokens`; it belongs to this object from now on."""
        if len(tokens) < _SHORTEST:
            kv.close()  # in the place of one that could be of use
            return
        self._held.append((tuple(tokens), kv))
        while len(self._held) > self._capacity:
            self._held.pop(0)[1].close()

    def clear(self) -> None:
        while self._held:
            self._held.pop()[1].close()


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common start."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
