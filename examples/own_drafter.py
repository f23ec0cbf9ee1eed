"""A drafter of your own, tried on the toy model: no weights needed. `python examples/own_drafter.py`

Whatever a drafter proposes is safe, since the target decides. So the only question is how often it guesses right.
"""

from collections.abc import Sequence
from itertools import pairwise

import forerun


class Follower(forerun.SessionDrafter[forerun.Session]):
    """Proposes, one after the other, the token that last followed each token. Remembers nothing, so any session will do."""

    name = "follower"

    def open(self, transcript: forerun.Transcript) -> forerun.Session:
        return forerun.Session(transcript)

    def draft(self, session: forerun.Session, path: Sequence[int], nodes: int) -> forerun.Draft:
        text = [*session.transcript.tokens, *path]
        followers = dict(pairwise(text))
        drafted: list[int] = []
        while len(drafted) < nodes and text[-1] in followers:
            text.append(followers[text[-1]])
            drafted.append(text[-1])
        return forerun.Draft.chain(drafted, source=self.name)


prompt = "what the target would have said it "
with (
    forerun.LLM.load("toy", draft="none") as plain,
    forerun.LLM.load("toy", draft=Follower(), num_speculative_tokens=4) as mine,
):
    expected = plain.generate(prompt, max_tokens=80)
    answer = mine.generate(prompt, max_tokens=80)

print(answer.text)
print(f"plain    {expected.stats.steps} steps")
print(f"follower {answer.stats.steps} steps, mean acceptance length {answer.stats.mean_acceptance_length:.2f}")
print(f"same text: {'yes' if answer.token_ids == expected.token_ids else 'NO'}")
