"""How prompts share a pass: the first goes on, a short one need not wait for a long one, and writing never waits."""

from __future__ import annotations

from forerun.backends.toy import ToyModel, random_logits
from forerun.controllers.fixed import Fixed
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.engine import Engine
from forerun.engine.sequence import Sequence
from forerun.verifiers.keyed import Keyed


def engine(prefill: int, shared: int) -> Engine:
    target = ToyModel(8, 2, random_logits(8, 1))
    return Engine(target, {}, [Keyed()], Fixed(0), prefill_rows=prefill, shared_rows=shared)


def ask(made: Engine, tokens: int, **options: int) -> Sequence:
    return made.add(Request([1] * tokens, Sampling(max_tokens=50), **options))  # type: ignore[arg-type]


def read(made: Engine, *sequences: Sequence) -> list[int]:
    """How many tokens each has read after one more step."""
    made.step()
    return [sequence.read for sequence in sequences]


def test_half_for_the_first_and_the_rest_for_the_shortest() -> None:
    made = engine(16, 16)
    long, middle, short = ask(made, 100), ask(made, 60), ask(made, 12)
    assert read(made, long, middle, short) == [8, 0, 8]
    assert read(made, long, middle, short) == [20, 0, 12]  # what the short one left goes to the first
    assert read(made, long, middle, short)[1] == 8


def test_of_equal_prompts_the_first_is_read_first() -> None:
    made = engine(16, 16)
    first, second = ask(made, 40), ask(made, 40)
    assert read(made, first, second) == [16, 0]
    assert read(made, first, second) == [32, 0]
    assert read(made, first, second) == [40, 8]


def test_beside_texts_that_are_written_prompts_are_read_in_small_parts() -> None:
    made = engine(64, 4)
    writes = ask(made, 3)
    made.step()
    assert writes.generated == 1
    reads = ask(made, 30)
    for step in range(1, 8):
        assert read(made, reads) == [4 * step]
        assert writes.generated == 1 + step
    # Where nobody writes, nobody waits.
    made.abort(writes)
    made.step()
    assert reads.generated == 1


def test_scored_prompts_take_fewer_rows() -> None:
    made = engine(256, 256)
    scored = ask(made, 200, prompt_logprobs=0)
    assert read(made, scored) == [64]
