"""What drafters, verifiers and controllers promise the engine. They live in packages of their own and meet in `assembly`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from forerun.core.draft import Draft
from forerun.core.model import KV, Needs
from forerun.core.step import StepResult, Verdict
from forerun.core.transcript import Transcript


class DraftSession(Protocol):
    """A drafter's memory of one text."""

    @property
    def unread(self) -> int:
        """Tokens of the text that a model must read before it can draft; 0 where no model drafts."""
        ...

    def observe(self, result: StepResult) -> None:
        """Learn what a step committed, whether or not anything of the draft was verified.

        Called after each step in which a draft was asked for, and after each step of a drafter that runs a model. Where
        drafting does not pay it is not asked for: then the text has grown by more than this step's tokens since the last call.
        """
        ...

    def finish(self) -> None:
        """The text has come to its end: keep what later texts may draft from. `close` follows."""
        ...

    def close(self) -> None:
        """Give up what the session holds. Closing twice is harmless."""
        ...


@dataclass(frozen=True)
class DraftRequest:
    """What is wanted of a drafter for one text.

    nodes: most nodes. depth: most levels; None leaves it to the drafter.
    path: tokens that are taken to follow the text though they are not committed; the draft hangs off the last of them. A
        drafter that cannot go on after uncommitted tokens returns the empty draft.
    min_probability: a node less likely to be reached is not worth being continued by another pass of a model.
    kv: the target's keys and values of the text, for drafters that go on from them.
    """

    session: DraftSession
    nodes: int
    depth: int | None = None
    path: tuple[int, ...] = ()
    min_probability: float = 0.0
    kv: KV | None = None


class Drafter(Protocol):
    """Proposes. Anything it proposes is safe: the verifier decides."""

    @property
    def name(self) -> str:
        """What results, messages and counters call it."""
        ...

    @property
    def needs(self) -> Needs:
        """What it wants to see of each pass of the target."""
        ...

    def open(self, transcript: Transcript) -> DraftSession:
        """A session for a text. `transcript` grows as the text does."""
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft for each request; the empty draft where there is nothing to say."""
        ...

    def close(self) -> None:
        """Give up what it holds, a model of its own too. Closing twice is harmless."""
        ...


class Target(Protocol):
    """The target's opinion at each node of one draft, as a verifier sees it. Nodes are indices into the draft, or ROOT."""

    def probs(self, node: int) -> NDArray[Any]:
        """`p` `[vocab]` after `node`, every sampling parameter applied, summing to one."""
        ...

    def choose(self, node: int) -> int:
        """The token that plain decoding draws after `node`."""
        ...


class Rng(Protocol):
    """A verifier's only source of randomness, so that tests can replay every outcome with its exact probability."""

    def accept(self, probability: Any) -> bool:
        """True with the given probability."""
        ...

    def sample(self, weights: NDArray[Any]) -> int:
        """An index, with probability proportional to its weight `[vocab]` (not necessarily normalized)."""
        ...


class Verifier(Protocol):
    """An acceptance rule."""

    @property
    def name(self) -> str:
        """What requests and results call it."""
        ...

    @property
    def exact(self) -> bool:
        """Whether the committed text has the target's distribution."""
        ...

    @property
    def keyed(self) -> bool:
        """Whether drafters draw with the target's own noise, so that a seed gives one text whatever is drafted."""
        ...

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        """The accepted path through a draft, from the root down, and the bonus token after it."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A text for which something may be drafted in this step.

    draft: what drafters that run no model propose, cut to what may be verified.
    nodes, depth: most nodes and levels that may be verified.
    unread: tokens that the drafter which runs a model must read before it can draft; None where there is none.
    """

    transcript: Transcript
    draft: Draft
    nodes: int
    depth: int
    unread: int | None = None


@dataclass(frozen=True)
class ModelPlan:
    """Where the drafter that runs a model is worth being run.

    levels: per candidate, how many levels it may add; 0 is none.
    min_probability: a node less likely to be reached is not worth another level.
    """

    levels: Sequence[int]
    min_probability: float = 0.0


@dataclass(frozen=True)
class DraftingCost:
    """What drafting took in this step.

    seconds: of drafters that run no model, and of what all learned from the step before. model_seconds: of those that do;
    levels: the passes they made in a row; read: per candidate, the tokens of its text that they read.
    """

    seconds: float = 0.0
    model_seconds: float = 0.0
    levels: int = 0
    read: Sequence[int] = ()


class Controller(Protocol):
    """Decides how much is drafted for each text in this step, and how much of that is verified.

    A step goes `nodes`, `asks`, `plan`, `trim`, `observe`, once each, with the same texts; candidates are in the order of the
    pass.
    """

    @property
    def name(self) -> str:
        """What results call it."""
        ...

    def nodes(self, transcript: Transcript) -> int:
        """Most nodes to draft; zero is plain decoding."""
        ...

    def asks(self, transcript: Transcript) -> bool:
        """Whether drafters that run no model are asked in this step. Those that are not do not learn from it either."""
        ...

    def plan(self, candidates: Sequence[Candidate]) -> ModelPlan:
        """Where a model is worth being run, beside the drafts at hand."""
        ...

    def trim(
        self, candidates: Sequence[Candidate], drafts: Sequence[Draft], rows: int, cost: DraftingCost
    ) -> list[Draft]:
        """The part of each draft to verify. rows: of the pass without drafts.

        Whether a node that was drawn from a q is kept must not depend on its own token, on what was drawn below it or
        beside it after it (see controllers.trimming).
        """
        ...

    def observe(self, results: Sequence[StepResult]) -> None:
        """Learn what a pass did and took. Called once a pass, inside it, with every result of it."""
        ...

    def forget(self, transcript: Transcript) -> None:
        """A text has ended; drop what is held for it."""
        ...
