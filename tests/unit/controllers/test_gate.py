"""Off when it loses, on again when it would gain, without fluttering."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from forerun.controllers import Gate


def run(gate: Gate, steps: int, gain: Callable[[int], float], asking: float = 0.0, promise: float = 0.0) -> list[str]:
    """What each step did: it rested, looked or speculated."""
    did = []
    for index in range(steps):
        did.append("rested")
        if gate.asks():
            speculates = gate.allows(promise)
            did[-1] = "speculated" if speculates else "looked"
            gate.observe(gain(index) if speculates else -asking, asking)
    return did


def test_stays_open_while_it_gains_even_when_some_steps_lose() -> None:
    assert set(run(Gate(), 200, lambda i: -0.2 if i % 3 == 0 else 0.5)) == {"speculated"}


def test_closes_on_losses_and_then_probes_ever_more_rarely() -> None:
    did = run(Gate(), 2000, lambda i: -0.3)
    assert did.count("speculated") < 20
    probes = [i for i, what in enumerate(did) if what == "speculated"][6:]
    waits = [b - a for a, b in itertools.pairwise(probes)]
    assert waits == sorted(waits)
    assert max(waits) <= 257


def test_opens_again_when_speculation_would_pay() -> None:
    gate = Gate()
    run(gate, 100, lambda i: -0.3)
    assert not gate.open
    late = run(gate, 300, lambda i: 1.0)
    assert gate.open
    assert set(late[-100:]) == {"speculated"}


def test_does_not_flutter_on_noise_around_zero() -> None:
    gate = Gate()
    speculates = [what == "speculated" for what in run(gate, 1000, lambda i: 0.4 if i % 2 else -0.5)]
    switches = sum(a != b for a, b in itertools.pairwise(speculates))
    assert switches < 30


def test_a_draft_that_promises_much_is_probed_sooner() -> None:
    waits = []
    for promise in (-0.5, 0.0, 0.5, 3.0):
        gate = Gate(gain=-1.0)
        waits.append(run(gate, 20, lambda i: -1.0, promise=promise).index("speculated"))
    assert waits[0] == waits[1] > waits[2] > waits[3]


def test_a_closed_gate_looks_as_often_as_costs_next_to_nothing() -> None:
    cheap, dear = (run(Gate(gain=-1.0), 1000, lambda i: -1.0, asking) for asking in (0.002, 0.2))
    assert cheap.count("rested") == 0
    assert 0.2 * (1000 - dear.count("rested")) < 0.015 * 1000
    promised = run(Gate(gain=-1.0), 60, lambda i: 1.0, 0.2, promise=3.0)
    assert promised.index("speculated") <= 20, "and is not late for a draft that promises much"


def test_asking_alone_may_close_it() -> None:
    """Where drafters cost more than their drafts could bring, none is verified, and nothing is lost on verifying."""
    gate = Gate()
    for _ in range(20):
        gate.observe(-0.1, 0.1)
    assert not gate.open
    gate = Gate()
    for _ in range(200):
        gate.observe(-0.01, 0.01)
    assert gate.open


def test_where_other_texts_lost_it_starts_closed() -> None:
    assert (Gate(gain=0.0).open, Gate(gain=-0.02).open, Gate(gain=-0.1).open) == (True, True, False)
