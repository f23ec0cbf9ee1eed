"""What the parts of the engine promise one another. Implementations live in their own packages and meet in `build`.

A pass works on *inputs*: for each sequence, a chain of committed tokens its KV has not read yet (the last one is the
root, or the chunk of a prompt) and a draft hanging off the last of them. Prefill, decode and verify are this one
operation. A feed's rows of logits are: row 0 after the last committed token, row `1 + node` after each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import EMPTY, Draft

if TYPE_CHECKING:
    from forerun.core.request import Request
    from forerun.core.step import StepResult, Verdict

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ModelInfo:
    """What a loaded model is and can do.

    vocab_size: ids the model has rows for; ids at or past `usable_vocab` are padding and are never sampled.
    context: the most tokens a sequence may hold.
    tree: whether one pass can verify a tree; without it drafts are cut to chains.
    rollback: whether a sequence can be cut back; without it nothing can be drafted.
    batch_invariant: whether a row's logits are the same bits whatever else is in the pass.
    hidden: how many layers can report hidden states (0: none).
    width: size of a hidden state.
    head_rows: columns of its logits where these stand for some ids only, known to who cut the head; 0: `vocab_size`.
    """

    name: str
    backend: str
    vocab_size: int
    usable_vocab: int
    context: int
    tree: bool = True
    rollback: bool = True
    batch_invariant: bool = True
    hidden: int = 0
    width: int = 0
    head_rows: int = 0


class KV(Protocol):
    """The cache of one sequence, owned by the model that opened it."""

    @property
    def length(self) -> int:
        """How many committed tokens it has read."""
        ...

    def truncate(self, length: int) -> None:
        """Forget everything past `length` tokens. Raises ValueError when there are fewer."""
        ...

    def fork(self) -> KV:
        """A new sequence that starts with the same tokens; the two then grow apart."""
        ...

    def close(self) -> None:
        """Release the memory. Closing twice is harmless."""
        ...


@dataclass(frozen=True)
class Needs:
    """What a pass must report besides the logits of drafted rows.

    hidden: layers whose hidden states are wanted (the output of layer i; -1 is the final norm's output).
    every_row: logits for every input_tokens token too, for perplexity.
    """

    hidden: tuple[int, ...] = ()
    every_row: bool = False


NOTHING = Needs()


@dataclass(frozen=True)
class ForwardInput:
    """One sequence's share of a pass: `input_tokens` committed tokens (at least one), then `draft`.

    logits: false for a chunk in the middle of a prompt, where nobody looks at the result (the draft is empty then).
    """

    kv: KV
    input_tokens: tuple[int, ...]
    draft: Draft = field(default=EMPTY)
    logits: bool = True


class ForwardOutput(Protocol):
    """The result of one pass, valid until its context manager is left."""

    def logits(self, index: int) -> Floats:
        """`[1 + nodes, vocab]` of feed `index`; `[input_tokens + nodes, vocab]` with `Needs.every_row`."""
        ...

    def hidden(self, index: int, layer: int) -> Floats:
        """`[input_tokens + nodes, width]` of feed `index` at a layer asked for in `Needs.hidden`."""
        ...

    def commit(self, index: int, path: Sequence[int]) -> None:
        """Keep the input_tokens tokens and the nodes of `path` (root to leaf) of feed `index`; the other nodes are lost."""
        ...


@runtime_checkable
class Answers(Protocol):
    """A result that can say which rows a model gave without asking the one whose text is promised (plain cascades)."""

    def unasked(self, index: int, row: int) -> bool:
        """Whether row `row` of feed `index` was answered without it."""
        ...


class Model(Protocol):
    """A language model behind one operation. What is not committed when the context is left rolls back."""

    @property
    def info(self) -> ModelInfo: ...

    def open(self) -> KV:
        """An empty sequence."""
        ...

    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> AbstractContextManager[ForwardOutput]:
        """One pass over all inputs. Raises BackendError, leaving every sequence as it was."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Borrower(Protocol):
    """A model that can go on from another one's keys and values: that one's first layers, or the same ones rounded."""

    def borrow(self, kv: KV) -> KV:
        """A sequence of this model with the tokens of the other's; the two then grow apart. Raises BackendError."""
        ...


class DraftSession(Protocol):
    """A drafter's memory of one request."""

    def propose(self, budget: int) -> Draft:
        """At most `budget` nodes to follow the request's tokens; the empty draft where it has nothing to say."""
        ...

    def observe(self, result: StepResult) -> None:
        """Learn what a round committed. Called once a round, drafted or not."""
        ...

    def close(self) -> None: ...


class Drafter(Protocol):
    """Proposes. Anything it proposes is safe: the verifier decides."""

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> Needs:
        """What it wants to see of each pass of the target."""
        ...

    def open(self, request: Request) -> DraftSession: ...

    def propose(self, sessions: Sequence[DraftSession], budgets: Sequence[int]) -> list[Draft]:
        """One draft per session. A drafter that runs a model does all sessions in the same passes."""
        ...

    def close(self) -> None: ...


class Target(Protocol):
    """The target's opinion at each node of one draft, as a verifier sees it. Nodes are indices into the draft, or ROOT."""

    def law(self, node: int) -> NDArray[Any]:
        """`p` `[vocab]` after `node`, every sampling parameter applied, summing to one."""
        ...

    def choose(self, node: int) -> int:
        """The token that plain decoding draws after `node`."""
        ...

    def belief(self, node: int) -> NDArray[Any]:
        """`p` `[vocab]` at temperature 1 and without truncation, whatever is sampled (sampling.belief). For cascades."""
        ...


class Rng(Protocol):
    """A verifier's only sources of randomness, so that tests can replay every result with its exact probability."""

    def accept(self, probability: Any) -> bool:
        """True with the given probability."""
        ...

    def sample(self, weights: NDArray[Any]) -> int:
        """An index, with probability proportional to its weight `[vocab]` (not necessarily normalized)."""
        ...


class Verifier(Protocol):
    """An acceptance rule."""

    @property
    def name(self) -> str: ...

    @property
    def exact(self) -> bool:
        """Whether the committed text has the target's law."""
        ...

    @property
    def shares_noise(self) -> bool:
        """Whether the drafter draws with the target's own noise (keyed), or with noise independent of it."""
        ...

    @property
    def wants_beliefs(self) -> bool:
        """Whether it looks at `Draft.beliefs` and `Target.belief`."""
        ...

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict: ...


class Controller(Protocol):
    """Decides how many nodes each request may draft now, and which of the drafted ones are worth verifying."""

    @property
    def name(self) -> str: ...

    def budgets(self, live: Sequence[Request]) -> list[int]:
        """Nodes per request; zero is plain decoding."""
        ...

    def trim(self, live: Sequence[Request], drafts: Sequence[Draft], seconds: float) -> list[Draft]:
        """The part of each draft to verify. `seconds` is what drafting took.

        Where a draft carries q, what is cut must not depend on the values drawn for the nodes that are cut.
        """
        ...

    def observe(self, results: Sequence[StepResult]) -> None:
        """Learn what a pass did and took. Called once a pass, with every result of it."""
        ...

    def forget(self, request: Request) -> None:
        """A request has ended; drop what is held for it."""
        ...
