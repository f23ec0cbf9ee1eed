"""Keyed verification: the plain sampler, called earlier. Exact, and the same text per seed whatever is drafted.

    x = choose(node) = argmax_v [log p(v | node) + G(seed, position, v)],  G Gumbel noise;  descend while x is a child

Plain decoding calls the same `choose` with the same noise, which is a pure function of seed, position and token id. So
the tokens emitted are those that plain decoding emits, one for one: the draft only decides how many passes it takes.
Temperature 0 is the case without noise, greedy verification.

With a drafter that races on the same G, the probability that they agree lies between (1 - TV) / (1 + TV) and 1 - TV, TV the
total variation between p and q (Gumbel coupling; Daliri, Musco and Suresh, 2408.07978).
"""

from __future__ import annotations

from forerun.core.draft import ROOT, Draft
from forerun.core.protocols import Rng, Target
from forerun.core.step import Verdict


class Keyed:
    """Accepts a drafted token when the target itself chooses it."""

    name = "keyed"
    exact = True
    keyed = True

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:  # noqa: ARG002
        path: list[int] = []
        node = ROOT
        while True:
            token = target.choose(node)
            chosen = next((child for child in draft.children(node) if draft.tokens[child] == token), None)
            if chosen is None:
                return Verdict(tuple(path), token)
            path.append(chosen)
            node = chosen
