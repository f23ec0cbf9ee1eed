"""Keys and values of ended texts, kept for the next one that starts with the same tokens: the next turn of a chat, or
another question under one system prompt.

Reuse changes no bit of what follows where a backend is batch-invariant; elsewhere nothing is kept. Kept texts are found by
a chain of hashes over blocks of tokens, so that looking costs the same however many there are; pages that several texts
share are stored once, by the backend's own forks.

An interrupt may leave a text in one of the two tables only. It can still be found or given up then, and `clear` empties both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from forerun.core.model import KV, Floats, ModelInfo

# Tokens of a block: a shorter common start is not worth a fork.
_BLOCK = 16

Hidden = Mapping[int, Floats]


@dataclass(eq=False)
class KeptPrefix:
    """A text and its keys and values. hidden: layer -> the hidden state `[width]` of its last token, where it was wanted."""

    tokens: tuple[int, ...]
    kv: KV
    memory: str
    hidden: Hidden
    blocks: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = list(_blocks(self.tokens, self.memory))


class PrefixCache:
    """The last `capacity` texts used; the one used longest ago is dropped first. Keeps nothing where reuse would show."""

    def __init__(self, capacity: int, info: ModelInfo) -> None:
        self._capacity = capacity if info.batch_invariant and info.rollback else 0
        self._kept: dict[int, KeptPrefix] = {}  # by id, used longest ago first
        self._found: dict[int, list[KeptPrefix]] = {}  # by the hash of a start

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def keeps(self) -> bool:
        """Whether anything is ever kept."""
        return self._capacity > 0

    def entries(self) -> list[KeptPrefix]:
        """The texts that are kept, used longest ago first."""
        return list(self._kept.values())

    def take(self, prompt: Sequence[int], memory: str = "", *, hidden: bool = False) -> tuple[KV, Hidden] | None:
        """Keys and values of the longest known start of `prompt`, and the hidden states at its end.

        Never of the prompt's last token, whose logits are needed. hidden: whether hidden states are wanted; where they are
        not known at the end of the common start, it is taken one token shorter, so that the next pass reports them.
        """
        best, length = self._longest(prompt, memory)
        if best is None:
            return None
        known = bool(best.hidden) and length == len(best.tokens)
        kv = best.kv.fork()
        kv.truncate(length if known or not hidden else length - 1)
        self._kept.pop(id(best), None)
        self._kept[id(best)] = best
        return kv, best.hidden if known else {}

    def put(self, tokens: Sequence[int], kv: KV, memory: str = "", hidden: Hidden | None = None) -> None:
        """Keep a KV that has read `tokens`; it belongs to this object from now on."""
        entry = KeptPrefix(tuple(tokens), kv, memory, hidden or {})
        if not self._capacity or not entry.blocks:
            kv.close()  # in the place of one that could be of use
            return
        known, length = self._longest((*entry.tokens, -1), memory)
        if known is not None and length == len(entry.tokens):
            kv.close()  # a kept text starts with all of it
            return
        if known is not None and length == len(known.tokens):
            self._forget(known)  # a turn of a chat goes on where the one before it ended
        self._kept[id(entry)] = entry
        for block in entry.blocks:
            self._found.setdefault(block, []).append(entry)
        while len(self._kept) > self._capacity:
            self.drop()

    def drop(self) -> bool:
        """Give up the text used longest ago; false where none is kept."""
        if not self._kept:
            return False
        self._forget(next(iter(self._kept.values())))
        return True

    def clear(self) -> None:
        """Give up all texts."""
        known = [*self._kept.values(), *(entry for entries in self._found.values() for entry in entries)]
        self._kept, self._found = {}, {}
        for entry in known:
            entry.kv.close()

    def _longest(self, prompt: Sequence[int], memory: str) -> tuple[KeptPrefix | None, int]:
        """The kept text with the longest common start with all but the last token of `prompt`, and the start's length."""
        best: list[KeptPrefix] = []
        for block in _blocks(prompt[:-1], memory):
            found = self._found.get(block)
            if not found:
                break
            best = found
        # Two starts may have one hash, and so may two memories.
        lengths = [
            (common_length(entry.tokens, prompt[:-1]) if entry.memory == memory else 0, index)
            for index, entry in enumerate(best)
        ]
        length, index = max(lengths, default=(0, 0))
        return (best[index], length) if length >= _BLOCK else (None, 0)

    def _forget(self, entry: KeptPrefix) -> None:
        self._kept.pop(id(entry), None)
        for block in entry.blocks:
            others = [other for other in self._found.pop(block, ()) if other is not entry]
            if others:
                self._found[block] = others
        entry.kv.close()


def _blocks(tokens: Sequence[int], memory: str) -> Iterator[int]:
    """The hash of each start of whole blocks, shortest first."""
    start = hash(memory)
    for end in range(_BLOCK, len(tokens) + 1, _BLOCK):
        start = hash((start, *tokens[end - _BLOCK : end]))
        yield start


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common start of two texts."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
