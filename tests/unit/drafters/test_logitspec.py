"""LogitSpec: runners-up of the last row below the root, each continued by lookup."""

from __future__ import annotations

import numpy as np

from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult
from forerun.drafters.logitspec import LogitSpecDrafter


def test_runners_up_are_guesses_at_the_token_after_next() -> None:
    request = Request([1, 2, 3, 4, 5, 9], Sampling())
    session = LogitSpecDrafter(20, floor=0.0).open(request)
    logits = np.full(20, -9.0, dtype=np.float32)
    logits[[7, 2, 12]] = (5.0, 4.0, 3.0)
    request.append(7, 100)
    session.observe(StepResult(request, (9,), tokens=(7,), rows=logits[None]))
    draft = session.propose(20)
    below = [draft.tokens[node] for node in draft.children(-1)]
    assert below[:2] == [2, 12]
    assert 7 not in below
    two = draft.children(-1)[0]
    assert [draft.tokens[node] for node in draft.children(two)] == [3]
    # They were ranked for this place alone.
    assert session.propose_after((11,), 5).tokens == ()
    request.append(3, 100)
    assert session.propose(2).tokens == (4, 5)


def test_lookup_and_runners_up_learn_their_worth() -> None:
    drafter = LogitSpecDrafter(20)
    request = Request([1, 2], Sampling())
    session = drafter.open(request)
    before = drafter.runners[0], drafter.lookup[0]
    for step in range(12):
        logits = np.zeros(20, dtype=np.float32)
        token, runner = 3 + step % 2, 3 + (step + 1) % 2
        logits[[token, runner]] = (5.0, 4.0)
        request.append(token, 100)
        session.observe(StepResult(request, (request.tokens[-2],), tokens=(token,), rows=logits[None]))
    assert drafter.runners[0] > before[0]
    assert drafter.lookup[3] > 0.6
