"""Draft models: found, made cheaper as asked, and compared with the target, before any weights are read.

    model:NAME[@OPTION...]      a model by name      @w4, @w8     its weights in at most 4 or 8 bits
    self:int4, self:int8        the target's copy    @head=32k    its head for the 32,768 most frequent tokens
    self:exit=N                 its first N layers   @head=FILE   or for those that a file lists, or that its text has

A model of the target's vocabulary drafts id by id. One of another vocabulary drafts among the shared tokens alone where
these make up most of ordinary text (TLI), or else as text that is read again (SLEM); see `drafters.bridge`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forerun.assembly.draft_options import DraftOptions
from forerun.assembly.head_ids import head_ids
from forerun.assembly.models import FoundModel, find_model, load_model
from forerun.config import Config
from forerun.core.model import Borrower, Floats, Model
from forerun.core.protocols import Drafter
from forerun.drafters.bridge import Shared
from forerun.drafters.grammar import Single
from forerun.drafters.head import Head
from forerun.drafters.model import ModelDrafter
from forerun.drafters.model_tree import Annotate
from forerun.drafters.slem import SlemDrafter
from forerun.errors import CompositionError, UsageError
from forerun.tokenizers.frequency import library_texts
from forerun.tokenizers.vocabulary import compare

if TYPE_CHECKING:
    from forerun.weights import Weights

# Shared tokens make up at least this much of ordinary text where a model of another vocabulary drafts among them alone.
# SmolLM2 for Qwen2.5 shares 80 %, and SLEM gets 2.13 tokens a step where TLI gets 2.00 (2.03 and 1.98 at temperature 0.8).
ENOUGH_SHARED = 0.9
# Characters of ordinary text by which that is told.
_SAMPLE = 100_000
# What `auto` makes of a draft model.
CHEAP = "@w4@head=32k"


class DraftSource:
    """A model that can draft for the target. Raises UsageError, ModelError, CompositionError or FetchError.

    needs_probs: whether its distributions are wanted and not only its tokens (cascades), or another drafter drafts for it.
    mixes: whether its distributions become part of the text's (cascades). note: what the user should know, or empty.
    borrows: whether it goes on from what the target has read and reads nothing itself. The target's own copies do, but
        for cascades: their distributions would depend on where a step began, and a seed would not repeat its text.
    """

    def __init__(
        self,
        single: Single,
        config: Config,
        target: FoundModel,
        known: Mapping[str, FoundModel],
        *,
        needs_probs: bool,
        mixes: bool,
    ) -> None:
        self.options = DraftOptions.parse(single.argument)
        self._target = target
        self._keep = config.keep_prefixes
        self.note = ""
        self._shared: Shared | None = None
        self._as_text = False
        name = self.options.name
        own = single.name == "self"
        self.borrows = own and not mixes
        base = target if own else known[name] if name in known else find_model(name, config)
        weights = _own_copy(target, name) if own else base.weights
        self._compare(base, needs_probs)
        self._whole = base.weights
        self.found = self._cheaper(str(single), base, weights, config)

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def restricted(self) -> bool:
        """Whether its head has rows for some ids only."""
        return self.options.head is not None

    def drafter(self, stage: Drafter | None, model: Model | None = None, annotate: Annotate | None = None) -> Drafter:
        """Load it and draft with it. model: what to run in its place. Raises ModelError or BackendError."""
        info, model = self._target.model.info, model or self.found.model
        if self._as_text:
            assert self._shared is not None
            return SlemDrafter(model, info.usable_vocab, self._shared, name=self._named, keep_prefixes=self._keep)
        head = None
        if self.restricted:
            head = Head(self._ids, min(info.vocab_size, model.info.vocab_size), self._vectors)
        return ModelDrafter(
            model,
            info,
            keep_prefixes=self._keep,
            stage=stage,
            head=head,
            borrows=self.borrows and isinstance(model, Borrower),
            shared=self._shared,
            annotate=annotate,
            name=self._named,
        )

    @property
    def _named(self) -> str:
        return self.found.name if ":" in self.found.name else f"model:{self.found.name}"

    def _compare(self, base: FoundModel, needs_probs: bool) -> None:
        """Find out how the two vocabularies can work together."""
        target = self._target
        report = compare(target.tokenizer, base.tokenizer)
        if report.shared:
            return
        shared = Shared(target.tokenizer, base.tokenizer)
        if not len(shared.ids):
            raise CompositionError(
                f"{base.name} cannot draft for {target.name}: they share no token: {report.describe()}."
            )
        if self.restricted:
            raise CompositionError(
                f"{base.name} has another vocabulary than {target.name}, so @head, which counts the target's tokens, "
                "cannot be used with it; leave it out."
            )
        covered = coverage(shared)
        self._shared, self._as_text = shared, covered < ENOUGH_SHARED and not needs_probs
        how = "as text that is read again (SLEM)" if self._as_text else "among the shared tokens (TLI)"
        self.note = (
            f"{base.name} has another vocabulary than {target.name} ({shared.overlap:.0%} of its tokens are shared, "
            f"{covered:.0%} of ordinary text): it drafts {how}."
        )

    def _cheaper(self, name: str, base: FoundModel, weights: Weights | None, config: Config) -> FoundModel:
        if weights is base.weights and not self.options.bits and not self.restricted:
            return base
        if weights is None:
            raise CompositionError(f"{base.name} has no weights to make cheaper; leave out @ and what follows.")
        from forerun.weights.derive import requantized, with_head

        if self.options.bits:
            weights = requantized(weights, self.options.bits)
        if self.options.head is not None:
            weights = with_head(weights, self._ids)
        load = partial(load_model, weights, base.tokenizer, name, config)
        return FoundModel(name, base.tokenizer, base.template, load, weights)

    @cached_property
    def _ids(self) -> NDArray[np.int64]:
        assert self.options.head is not None
        return head_ids(self.options.head, self._target)

    def _vectors(self, ids: NDArray[np.int64]) -> Floats:
        from forerun.weights.derive import head_vectors

        assert self._whole is not None
        return head_vectors(self._whole, ids)


def coverage(shared: Shared) -> float:
    """The share of the tokens of ordinary text, as the target writes it, that both vocabularies have."""
    text = "".join(itertools.islice(library_texts(), 4))[:_SAMPLE]
    tokens = shared.target.encode(text, add_bos=False)
    return float(np.isin(tokens, shared.ids).mean()) if tokens else 0.0


def _own_copy(target: FoundModel, what: str) -> Weights:
    """`int4`, `int8` or `exit=N` of the target."""
    from forerun.weights.derive import first_layers, requantized

    weights = target.weights
    if weights is None:
        raise CompositionError(f"{target.name} has no weights, so it cannot draft for itself; leave out self:{what}.")
    layers = re.fullmatch(r"exit=(\d+)", what)
    if layers:
        return first_layers(weights, int(layers[1]))
    if what not in ("int4", "int8"):
        raise UsageError(f"self:{what} is unknown; known: self:int8, self:int4 and self:exit=N.")
    copy = requantized(weights, "w4" if what == "int4" else "w8")
    if copy is weights:
        raise CompositionError(
            f"nothing in {target.name} has more than {what[3:]} bits, so self:{what} would be the target itself; "
            "draft with self:exit=N or a smaller model."
        )
    return copy
