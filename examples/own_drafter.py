"""A drafter of your own, tried on the toy model: no weights needed. `python examples/own_drafter.py`

Whatever a drafter proposes is safe, since the target decides. So the only question is how often it guesses right.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import forerun
from forerun.controllers.fixed import Fixed
from forerun.core.draft import Draft
from forerun.core.request import Request
from forerun.drafters.base import Session, SessionDrafter
from forerun.engine import Engine


class FollowerSession(Session):
    """Proposes, one after the other, the token that last followed each token."""

    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        text = [*self.request.tokens, *path]
        followers = dict(pairwise(text))
        drafted: list[int] = []
        while len(drafted) < budget and text[-1] in followers:
            text.append(followers[text[-1]])
            drafted.append(text[-1])
        return Draft.chain(drafted, source="follower")


class Follower(SessionDrafter[FollowerSession]):
    """Remembers nothing between requests, so opening a session is all there is to it."""

    name = "follower"

    def open(self, request: Request) -> FollowerSession:
        return FollowerSession(request)


def with_drafter(llm: forerun.LLM, drafter: Follower, nodes: int) -> forerun.LLM:
    """The same model with another drafter, `nodes` drafted tokens a round."""
    parts = llm.assembly
    engine = Engine(parts.engine.target, drafter, parts.engine.verifier, Fixed(nodes))
    return forerun.LLM(replace(parts, engine=engine, draft=drafter.name))


plain = forerun.LLM.load("toy", draft="none")
mine = with_drafter(plain, Follower(), nodes=4)

prompt = "what the target would have said it "
expected = plain.generate(prompt, max_tokens=80)
answer = mine.generate(prompt, max_tokens=80)

print(answer.text)
print(f"plain    {expected.stats.rounds} rounds")
print(f"follower {answer.stats.rounds} rounds, mean acceptance length {answer.stats.mean_acceptance_length:.2f}")
print(f"same text: {'yes' if answer.token_ids == expected.token_ids else 'NO'}")
