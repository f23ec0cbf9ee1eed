"""Parts of the caller's own: `LLM.load` takes drafters, verifiers and controllers as objects."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

import forerun
from forerun import Draft, DraftRequest, Host, Session, SessionDrafter, Speculation, Transcript
from forerun.controllers.fixed import Fixed
from forerun.core.model import NOTHING
from forerun.core.protocols import Rng, Target
from forerun.core.step import Verdict
from forerun.errors import CompositionError, UsageError
from forerun.verifiers.keyed import Keyed

PROMPT = "what the target would have said it "


class Follower(SessionDrafter[Session]):
    """Proposes the token that last followed each token."""

    name = "follower"

    def __init__(self) -> None:
        self.closed = 0

    def open(self, transcript: Transcript) -> Session:
        return Session(transcript)

    def draft(self, session: Session, path: Sequence[int], nodes: int) -> Draft:
        text = [*session.transcript.tokens, *path]
        followers, drafted = dict(pairwise(text)), list[int]()
        while len(drafted) < nodes and text[-1] in followers:
            text.append(followers[text[-1]])
            drafted.append(text[-1])
        return Draft.chain(drafted, source=self.name)

    def close(self) -> None:
        self.closed += 1


class Counting:
    """A verifier that counts what it is asked."""

    name, exact, keyed = "counting", True, True

    def __init__(self) -> None:
        self.asked = 0
        self._rule = Keyed()

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        self.asked += 1
        return self._rule.verify(draft, target, rng)


def load(**options: Any) -> forerun.LLM:
    return forerun.LLM.load("toy", **options)


def plain(**options: Any) -> list[int]:
    with load(draft="none") as llm:
        return llm.generate(PROMPT, max_tokens=80, **options).token_ids


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3}], ids=str)
def test_a_drafter(options: dict[str, Any]) -> None:
    drafter = Follower()
    with load(draft=drafter, num_speculative_tokens=4) as llm:
        answer = llm.generate(PROMPT, max_tokens=80, **options)
        assert (answer.draft, answer.token_ids) == ("follower", plain(**options))
        assert 0 < answer.stats.accepted == 80 - answer.stats.steps
        assert set(answer.stats.sources) == {"follower"}
        assert drafter.closed == 0
    assert drafter.closed == 1


def test_a_function_makes_a_drafter_for_the_target() -> None:
    hosts: list[Host] = []

    def make(host: Host) -> Follower:
        hosts.append(host)
        return Follower()

    with load(draft=make) as llm:
        assert llm.assembly.draft == "follower"
        assert llm.generate(PROMPT, max_tokens=80).token_ids == plain()
    [host] = hosts
    assert (host.info.name, host.tokenizer.vocab_size, host.argument) == ("toy", 257, "")


def test_a_class_makes_one_too() -> None:
    class Made(Follower):
        def __init__(self, host: Host) -> None:
            super().__init__()
            self.usable = host.info.usable_vocab

    with load(draft=Made) as llm:
        drafter = llm.assembly.engine.speculator.methods["follower"].cheap
        assert isinstance(drafter, Made)
        assert drafter.usable == 257


def test_a_drafter_stands_beside_those_that_requests_choose_by_name() -> None:
    with load(draft=Follower(), other_drafts=["ngram"], num_speculative_tokens=4) as llm:
        answers = [llm.generate(PROMPT, max_tokens=80, speculation=Speculation(draft=name)) for name in (None, "ngram")]
    assert [answer.draft for answer in answers] == ["follower", "ngram"]
    assert [set(answer.stats.sources) for answer in answers] == [{"follower"}, {"ngram"}]
    assert answers[0].token_ids == answers[1].token_ids == plain()


def test_a_drafter_that_fails_costs_speed_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Follower):
        def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            raise ZeroDivisionError("so it goes")

    with load(draft=Failing()) as llm:
        answer = llm.generate(PROMPT, max_tokens=80)
    assert (answer.token_ids, answer.stats.drafted) == (plain(), 0)
    assert [record.getMessage() for record in caplog.records if "follower" in record.getMessage()] != []


def test_a_verifier() -> None:
    rule = Counting()
    with load(draft="ngram", verifier=rule, num_speculative_tokens=4) as llm:
        answer = llm.generate(PROMPT, max_tokens=80)
        assert (answer.verifier, answer.lossy, answer.token_ids) == ("counting", "", plain())
        assert rule.asked == answer.stats.steps
        # The exact rules are still there to be chosen.
        other = llm.generate(PROMPT, max_tokens=80, speculation=Speculation(verifier="rejection"))
        assert (other.verifier, other.token_ids, rule.asked) == ("rejection", plain(), answer.stats.steps)


def test_a_verifier_that_may_change_the_text_says_so() -> None:
    class Loose(Counting):
        name, exact = "loose", False

    with load(draft="ngram", verifier=Loose()) as llm:
        assert llm.generate(PROMPT, max_tokens=8).as_dict()["lossy"] == "loose"


@pytest.mark.parametrize("nodes", [0, 2, 5])
def test_a_controller(nodes: int) -> None:
    with load(draft="ngram", controller=Fixed(nodes)) as llm:
        answer = llm.generate(PROMPT, max_tokens=80, trace=True)
    assert answer.steps is not None
    assert max(len(step["drafted"]) for step in answer.steps) == nodes
    assert answer.token_ids == plain()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"verifier": 3}, "verifier is 3; it must be a name, or an object with name, exact, keyed, verify"),
        ({"verifier": Counting}, "it must be a name, or an object with"),
        ({"controller": Follower()}, "or an object with name, nodes, asks, plan, trim, observe, forget"),
        ({"draft": 7}, "draft is 7; it must be a name, or an object with name, needs, open, propose, close"),
    ],
)
def test_what_is_no_part(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(**options)


def test_a_function_that_makes_no_drafter() -> None:
    class Half:
        name, needs = "half", NOTHING

    make: Any = lambda host: Half()  # noqa: E731
    with pytest.raises(CompositionError, match="Half has no open, propose, close"):
        load(draft=make)
