"""Plans: prompts share what is left of a pass, decoding requests always take part."""

from __future__ import annotations

from forerun.backends.toy import ToyKV
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.engine.scheduler import Scheduler


def request(prompt: int, read: int = 0) -> Request:
    made = Request([1] * prompt, Sampling())
    kv = ToyKV()
    kv.length = read
    made.kv = kv
    return made


def test_admits_oldest_first_up_to_the_limit() -> None:
    scheduler = Scheduler(2, 16)
    asked = [request(3) for _ in range(3)]
    for one in asked:
        scheduler.add(one)
    assert list(scheduler.admit()) == asked[:2]
    scheduler.remove(asked[0])
    assert list(scheduler.admit()) == asked[2:]
    assert scheduler.live == asked[1:]


def test_prompts_share_the_rows_and_decoding_goes_on() -> None:
    scheduler = Scheduler(4, 10)
    long, short, decoding, late = request(25), request(4, 1), request(30, 29), request(5)
    scheduler.live = [long, short, decoding, late]
    turns = {id(t.request): t for t in scheduler.plan()}
    assert len(turns[id(long)].input_tokens) == 10
    assert not turns[id(long)].decodes
    assert id(short) not in turns
    assert id(late) not in turns
    assert len(turns[id(decoding)].input_tokens) == 1
    assert turns[id(decoding)].decodes


def test_the_last_chunk_of_a_prompt_decodes() -> None:
    scheduler = Scheduler(1, 10)
    one = request(25, 20)
    scheduler.live = [one]
    [turn] = scheduler.plan()
    assert (len(turn.input_tokens), turn.decodes) == (5, True)
