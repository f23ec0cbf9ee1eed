"""Counters by drafter, and what is kept of prefixes by memory."""

from __future__ import annotations

from forerun.backends.toy import ToyModel, random_logits
from forerun.core.draft import Draft
from forerun.core.model import ForwardInput
from forerun.core.prefix_cache import PrefixCache
from forerun.core.request import Request
from forerun.core.stats import Counted, Stats
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript


def test_nodes_are_counted_for_the_drafter_that_proposed_them() -> None:
    draft = Draft((1, 2, 3), (-1, 0, -1), source="a+b", sources=("a", "a", "b"))
    result = StepResult(Transcript(Request([1])), (1,), draft, (0,), (1, 5))
    stats, both = Stats(), Stats()
    stats.add(result)
    both.merge(stats)
    both.merge(stats)
    assert stats.sources == {"a": Counted(2, 1), "b": Counted(1, 0)}
    assert both.sources == {"a": Counted(4, 2), "b": Counted(2, 0)}


def test_prefixes_are_kept_and_listed_by_memory() -> None:
    model = ToyModel(8, 2, random_logits(8, 1))
    cache = PrefixCache(4, model.info)
    text = [1, 2, 3, 4] * 8
    for memory in ("anna", "ben"):
        kv = model.open()
        with model.forward([ForwardInput(kv, tuple(text), logits=False)]) as output:
            output.commit(0, ())
        cache.put(text, kv, memory)
    assert [(entry.memory, entry.tokens) for entry in cache.entries()] == [("anna", tuple(text)), ("ben", tuple(text))]
    # Two memories whose starts had one hash would still not meet.
    cache._found = {block: cache.entries() for entry in cache.entries() for block in entry.blocks}
    taken = cache.take([*text, 5], "carl")
    assert taken is None
    taken = cache.take([*text, 5], "anna")
    assert taken is not None
    assert taken[0].length == len(text)
