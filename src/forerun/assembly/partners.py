"""Draft models: found, made cheaper as asked, and compared with the target, before any weights are read.

    model:NAME[@OPTION...]      a model by name      @w4, @w8     its weights in at most 4 or 8 bits
    self:int4, self:int8        the target's copy    @head=32k    its head for the 32,768 most frequent tokens
    self:exit=N                 its first N layers   @head=FILE   or for those that a file lists, or that its text has

A model of the target's vocabulary drafts id by id. One of another vocabulary drafts among the shared tokens alone where
these make up most of ordinary text (TLI), or else as text that is read again (SLEM); see `bridge`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from forerun.assembly.models import Source, find_model, load_model
from forerun.config import Config
from forerun.core.protocols import Borrower, Drafter, Floats, Model
from forerun.drafters.grammar import Single
from forerun.errors import CompositionError, UsageError

if TYPE_CHECKING:
    from forerun.drafters.bridge import Shared
    from forerun.drafters.model import Helper
    from forerun.tokenizers.tokenizer import Tokenizer
    from forerun.weights import Weights

# Shared tokens make up at least this much of ordinary text where a model of another vocabulary drafts among them alone.
# SmolLM2 for Qwen2.5 shares 80 %, and SLEM gets 2.13 tokens a round where TLI gets 2.00 (2.03 and 1.98 at temperature 0.8).
ENOUGH_SHARED = 0.9
# What `auto` makes of a draft model.
CHEAP = "@w4@head=32k"

_SIZE = re.compile(r"(\d+)(k?)")
_SAMPLE = 100_000


@dataclass(frozen=True)
class Options:
    """What `name@w4@head=32k` says: a name, at most `bits`, and a head by size or file."""

    name: str
    bits: Literal["w8", "w4"] | None = None
    head: str | None = None

    @classmethod
    def read(cls, argument: str) -> Options:
        """Raises UsageError for an option that is not one; an `@` in the name of a file that is there is a part of it."""
        bits: Literal["w8", "w4"] | None = None
        head: str | None = None
        while "@" in argument and not Path(argument).exists():
            argument, _, option = argument.rpartition("@")
            if option in ("w4", "w8") and bits is None:
                bits = "w4" if option == "w4" else "w8"
            elif option.startswith("head=") and option != "head=" and head is None:
                head = option.removeprefix("head=")
            else:
                raise UsageError(
                    f"{option!r} is no option of a draft model, or is there twice; known: @w4, @w8, @head=SIZE (such as "
                    "32k) and @head=FILE."
                )
        return cls(argument, bits, head)


class Partner:
    """A model that can draft for the target. Raises UsageError, ModelError, CompositionError or FetchError.

    laws: whether its distributions are wanted and not only its tokens (cascades), or another drafter drafts for it.
    mixes: whether its laws become part of the text's (cascades). note: what the user should know about it, or empty.
    borrows: whether it goes on from what the target has read and reads nothing itself. The target's own copies do, but
    for cascades: what they think would depend on where a round began, and a seed would not repeat its text.
    """

    def __init__(
        self, single: Single, config: Config, target: Source, known: Mapping[str, Source], *, laws: bool, mixes: bool
    ) -> None:
        self.options = Options.read(single.argument)
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
        self._compare(base, laws)
        self._whole = base.weights
        self.source = self._cheaper(str(single), base, weights, config)

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def restricted(self) -> bool:
        """Whether its head has rows for some ids only."""
        return self.options.head is not None

    def drafter(self, helper: Helper | None, model: Model | None = None) -> Drafter:
        """Load it and draft with it. model: what to run in its place. Raises ModelError or BackendError."""
        from forerun.drafters.head import Head
        from forerun.drafters.model import ModelDrafter
        from forerun.drafters.slem import SlemDrafter

        info, model = self._target.model.info, model or self.source.model
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
            helper=helper,
            head=head,
            borrows=self.borrows and isinstance(model, Borrower),
            shared=self._shared,
            name=self._named,
        )

    @property
    def _named(self) -> str:
        return self.source.name if ":" in self.source.name else f"model:{self.source.name}"

    def _compare(self, base: Source, laws: bool) -> None:
        from forerun.drafters.bridge import Shared
        from forerun.tokenizers.vocabulary import compare

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
        self._shared, self._as_text = shared, covered < ENOUGH_SHARED and not laws
        how = "as text that is read again (SLEM)" if self._as_text else "among the shared tokens (TLI)"
        self.note = (
            f"{base.name} has another vocabulary than {target.name} ({shared.overlap:.0%} of its tokens are shared, "
            f"{covered:.0%} of ordinary text): it drafts {how}."
        )

    def _cheaper(self, name: str, base: Source, weights: Weights | None, config: Config) -> Source:
        if weights is base.weights and not self.options.bits and not self.restricted:
            return base
        if weights is None:
            raise CompositionError(f"{base.name} has no weights to make cheaper; leave out @ and what follows.")
        from forerun.weights.derive import requantized, with_head

        if self.options.bits:
            weights = requantized(weights, self.options.bits)
        if self.options.head is not None:
            weights = with_head(weights, self._ids)
        tokenizer = base.tokenizer
        return Source(name, tokenizer, base.template, partial(load_model, weights, tokenizer, name, config), weights)

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
    from forerun.tokenizers.frequency import library_texts

    text = "".join(itertools.islice(library_texts(), 4))[:_SAMPLE]
    tokens = shared.target.encode(text, add_bos=False)
    return float(np.isin(tokens, shared.ids).mean()) if tokens else 0.0


def head_ids(wanted: str, target: Source) -> NDArray[np.int64]:
    """The ids of a head by size (`24k`, `24000`) or by file: a list of ids, or a text whose frequent tokens are meant.

    Raises UsageError.
    """
    size = _SIZE.fullmatch(wanted)
    if size:
        rows = int(size[1]) * (1024 if size[2] else 1)
        if not rows:
            raise UsageError("a head of no rows proposes nothing; give a size such as @head=32k.")
        return np.sort(_ranking(target)[:rows])
    try:
        text = Path(wanted).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"@head={wanted} is neither a size such as 32k nor a file that can be read ({error})."
        ) from None
    with contextlib.suppress(ValueError, TypeError):
        ids = json.loads(text) if text.lstrip().startswith("[") else text.split()
        return np.array([int(token) for token in ids], dtype=np.int64)
    from forerun.tokenizers.frequency import ranking

    return np.sort(ranking(target.tokenizer, [text])[: 32 * 1024])


def _ranking(target: Source) -> NDArray[np.int64]:
    """The target's tokens, the most frequent first: measured once for a vocabulary, and kept."""
    from forerun.core.files import default_home, set_aside, writing
    from forerun.tokenizers.frequency import library_texts, ranking

    path = default_home() / "heads" / f"{target.vocabulary}.npy"
    try:
        return _read_ranking(path, target.tokenizer)
    except OSError:
        pass  # there is none, or none that can be read
    except (ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        set_aside(path, error)
    found = ranking(target.tokenizer, library_texts())
    # Without a place to keep it, it is measured again next time.
    with contextlib.suppress(OSError), writing(path) as file:
        np.save(file, found.astype(np.int32))
    return found


def _read_ranking(path: Path, tokenizer: Tokenizer) -> NDArray[np.int64]:
    kept = np.load(path, allow_pickle=False)
    if kept.dtype != np.int32 or kept.ndim != 1 or len(np.unique(kept)) < len(kept):
        raise ValueError("not a ranking of tokens")
    if not len(kept) or kept.min() < 0 or kept.max() >= tokenizer.vocab_size:
        raise ValueError("its ids are out of range")
    ids: NDArray[np.int64] = kept.astype(np.int64)
    return ids


def _own_copy(target: Source, what: str) -> Weights:
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
