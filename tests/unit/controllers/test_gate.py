"""Off when it loses, on again when it would gain, without fluttering."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from forerun.controllers import Gate


def run(gate: Gate, steps: int, gain: Callable[[int], float]) -> list[bool]:
    speculated = []
    for index in range(steps):
        speculated.append(gate.allows())
        if speculated[-1]:
            gate.observe(gain(index))
    return speculated


def test_stays_open_while_it_gains_even_when_some_steps_lose() -> None:
    assert all(run(Gate(), 200, lambda i: -0.2 if i % 3 == 0 else 0.5))


def test_closes_on_losses_and_then_probes_ever_more_rarely() -> None:
    speculated = run(Gate(), 2000, lambda i: -0.3)
    assert sum(speculated) < 20
    probes = [i for i, yes in enumerate(speculated) if yes][4:]
    waits = [b - a for a, b in itertools.pairwise(probes)]
    assert waits == sorted(waits)
    assert max(waits) <= 257


def test_opens_again_when_speculation_would_pay() -> None:
    gate = Gate()
    run(gate, 100, lambda i: -0.3)
    assert not gate.open
    late = run(gate, 200, lambda i: 1.0)
    assert gate.open
    assert all(late[-100:])


def test_does_not_flutter_on_noise_around_zero() -> None:
    gate = Gate()
    speculated = run(gate, 1000, lambda i: 0.4 if i % 2 else -0.5)
    switches = sum(a != b for a, b in itertools.pairwise(speculated))
    assert switches < 30


def test_a_draft_that_promises_much_is_probed_sooner() -> None:
    waits = []
    for promise in (-0.5, 0.0, 0.5, 3.0):
        gate = Gate()
        while gate.open:
            gate.observe(-1.0)
        waits.append(next(steps for steps in range(1000) if gate.allows(promise)))
    assert waits[0] == waits[1] > waits[2] > waits[3]
