"""From names to objects: the only place that names classes. Needs and capabilities are matched here, once."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from forerun.controllers.fixed import Fixed
from forerun.core.protocols import Controller, Drafter, Model, Verifier
from forerun.engine.engine import Engine
from forerun.errors import CompositionError, UsageError
from forerun.models.catalogue import DEFAULT_MODEL

if TYPE_CHECKING:
    from forerun.models.progress import Progress
    from forerun.text.chat import ChatTemplate
    from forerun.weights import Weights
    from forerun.weights.tokenizer import Tokenizer

BACKENDS = ("auto", "cpu", "reference", "toy")
VERIFIERS = ("keyed", "rejection", "block", "traversal", "kseq")


@dataclass(frozen=True)
class Plan:
    """What to build.

    model: a name of the catalogue, a GGUF file, a Hugging Face folder or a hub repository.
    draft: `none`, `ngram`, `model:NAME` or `auto` (see `drafters`).
    backend: of target and draft model: `auto` is the fastest one that runs here.
    num_speculative_tokens: nodes drafted a round at most; None is the drafter's own default.
    prompt_lookup_min, prompt_lookup_max: shortest and longest n-gram of `ngram`.
    max_sequences: requests that run at once. keep_prefixes: ended texts whose KV is kept for the next turn.
    threads: None is as many as there are cores to use. context: most tokens of a text; None is the model's own.
    kv_dtype, quantise: of the cpu backend, see `backends.cpu.options`.
    """

    model: str = DEFAULT_MODEL
    draft: str = "none"
    backend: str = "auto"
    verifier: str = "keyed"
    num_speculative_tokens: int | None = None
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 4
    max_sequences: int = 8
    keep_prefixes: int = 1
    threads: int | None = None
    context: int | None = None
    kv_dtype: Literal["fp16", "fp32"] = "fp16"
    quantise: Literal["w8", "w4"] | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Assembly:
    """What was built, under the names that it goes by in results. notes: lines that the user should see."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    model: str
    draft: str
    verifier: str
    backend: str
    max_sequences: int
    notes: tuple[str, ...] = ()


class Source:
    """A model found but not loaded: what it is called, and enough of its files open to compare vocabularies."""

    def __init__(
        self, name: str, tokenizer: Tokenizer, template: ChatTemplate | None, load: Callable[[], Model]
    ) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.template = template
        self._load = load

    @cached_property
    def model(self) -> Model:
        """The model, loaded when it is first asked for. Raises UnsupportedModelError, ModelFileError or BackendError."""
        return self._load()


def build(plan: Plan, target: Source | None = None) -> Assembly:
    """Find, check, then load, in this order: what cannot work together is refused before weights are read.

    target: the target itself, where several assemblies are to share one. Raises UsageError, CompositionError, ModelError
    or FetchError.
    """
    verifier = _verifier(plan.verifier)
    kind, _, draft_name = _draft(plan.draft).partition(":")
    if plan.num_speculative_tokens is not None and plan.num_speculative_tokens < 0:
        raise UsageError(f"num_speculative_tokens is {plan.num_speculative_tokens}; it must be 0 or more.")
    if plan.max_sequences < 1:
        raise UsageError(f"max_sequences is {plan.max_sequences}; it must be at least 1.")
    target = target or find_model(plan.model, plan)
    partner = find_model(draft_name, plan) if kind == "model" else None
    if partner is not None:
        _match(target, partner)
    drafter, nodes = _drafter(kind, plan, target.model, partner)
    nodes = nodes if plan.num_speculative_tokens is None else plan.num_speculative_tokens
    controller: Controller = Fixed(nodes)
    engine = Engine(
        target.model, drafter, verifier, controller, max_sequences=plan.max_sequences, keep_prefixes=plan.keep_prefixes
    )
    return Assembly(
        engine=engine,
        tokenizer=target.tokenizer,
        template=target.template,
        model=target.name,
        draft=f"{kind}:{partner.name}" if partner is not None else kind,
        verifier=verifier.name,
        backend=target.model.info.backend,
        max_sequences=plan.max_sequences,
        notes=_notes(plan, target.model.info.backend),
    )


def find_model(name: str, plan: Plan) -> Source:
    """Resolve a name (fetching it on first use) and open its files. Raises ModelError or FetchError."""
    if plan.backend not in BACKENDS:
        raise UsageError(_unknown("backend", plan.backend, BACKENDS))
    if plan.backend == "toy" or name == "toy":
        return _toy()
    from forerun.models import resolve
    from forerun.text.chat import ChatTemplate
    from forerun.weights import open_weights
    from forerun.weights.tokenizer import load_tokenizer

    path = resolve(name, plan.progress)
    weights = open_weights(path)
    tokenizer = load_tokenizer(weights)
    template = None if tokenizer.chat_template is None else ChatTemplate(tokenizer)
    short = Path(name).name if Path(name).exists() else name
    return Source(short, tokenizer, template, lambda: load_model(weights, tokenizer, short, plan))


def load_model(weights: Weights, tokenizer: Tokenizer, name: str, plan: Plan) -> Model:
    """Load weights into the backend that the plan names; `auto` is the compiled core where it was built.

    Raises UnsupportedModelError, ModelFileError or BackendError.
    """
    if backend_for(plan.backend) == "cpu":
        from forerun.backends.cpu import CpuModel
        from forerun.backends.cpu.options import CpuOptions

        options = CpuOptions(threads=plan.threads, kv_dtype=plan.kv_dtype, quantise=plan.quantise, context=plan.context)
        return CpuModel.from_weights(weights, name=name, usable_vocab=tokenizer.vocab_size, options=options)
    from forerun.backends.reference import ReferenceModel

    return ReferenceModel.from_weights(
        weights, name=name, usable_vocab=tokenizer.vocab_size, context=plan.context, threads=plan.threads
    )


def backend_for(asked: str) -> str:
    """The backend that runs when `asked` is wanted: `auto` falls back to `reference` where the core is missing."""
    if asked != "auto":
        return asked
    from forerun.backends.cpu import missing_core

    return "cpu" if missing_core() is None else "reference"


def _notes(plan: Plan, backend: str) -> tuple[str, ...]:
    """What the user should know about the choice of backend."""
    if plan.backend == "auto" and backend == "reference":
        from forerun.backends.cpu import missing_core

        return (missing_core() or "",)
    return ()


def _toy() -> Source:
    from forerun.backends.toy import ToyModel, text_law
    from forerun.weights.tokenizer import byte_tokenizer

    tokenizer = byte_tokenizer()
    law = text_law([*_TOY_TEXT.encode(), *tokenizer.eos_ids], tokenizer.vocab_size, 5)
    return Source("toy", tokenizer, None, lambda: ToyModel(tokenizer.vocab_size, 5, law))


_TOY_TEXT = (
    "the drafter runs ahead and the target reads what the drafter wrote. what the target would have said it keeps, and "
    "what it would not have said it drops. the target reads the draft in one pass, so the text is the same and the "
    "passes are fewer. the drafter runs ahead again, and the target reads again, until the text has come to its end."
)


def _verifier(name: str) -> Verifier:
    if name not in VERIFIERS:
        raise UsageError(_unknown("verifier", name, VERIFIERS))
    if name == "keyed":
        from forerun.verifiers.keyed import Keyed

        return Keyed()
    if name == "rejection":
        from forerun.verifiers.rejection import Rejection

        return Rejection()
    if name == "block":
        from forerun.verifiers.block import Block

        return Block()
    if name == "traversal":
        from forerun.verifiers.traversal import Traversal

        return Traversal()
    from forerun.verifiers.kseq import KSeq

    return KSeq()


def _draft(spec: str) -> str:
    known = ("none", "ngram", "model:NAME", "auto")
    kind, colon, name = spec.partition(":")
    if kind == "auto" and not colon:
        return "ngram"
    if (kind in ("none", "ngram") and not colon) or (kind == "model" and name):
        return spec
    raise UsageError(_unknown("draft", spec, known))


def _drafter(kind: str, plan: Plan, target: Model, partner: Source | None) -> tuple[Drafter, int]:
    """The drafter, and how many nodes a round it drafts unless told otherwise."""
    if partner is not None:
        from forerun.drafters.model import ModelDrafter

        return ModelDrafter(partner.model, target.info), 4
    if kind == "ngram":
        from forerun.drafters.ngram import NgramDrafter

        return NgramDrafter(plan.prompt_lookup_min, plan.prompt_lookup_max), 7
    from forerun.drafters.none import NoneDrafter

    return NoneDrafter(), 0


def _match(target: Source, partner: Source) -> None:
    """Refuse a draft model with another vocabulary, with a report made of the token strings."""
    from forerun.weights.vocabulary import compare

    report = compare(target.tokenizer, partner.tokenizer)
    if not report.shared:
        raise CompositionError(f"{partner.name} cannot draft for {target.name}: {report.describe()}")


def _unknown(what: str, given: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(given, known, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"unknown {what} {given!r}; known: {', '.join(known)}.{hint}"
