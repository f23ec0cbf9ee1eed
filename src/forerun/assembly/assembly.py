"""The parts put together: target, drafters, verifiers, controller, engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from forerun.assembly.controllers import controller_for, shared_rows
from forerun.assembly.drafters import Drafting
from forerun.assembly.memory import divide
from forerun.assembly.models import FoundModel, find_model, notes
from forerun.cascade.build import Cascades
from forerun.config import Config
from forerun.core.protocols import Verifier
from forerun.engine import Engine
from forerun.verifiers.block import Block
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.kseq import KSeq
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal

if TYPE_CHECKING:
    from forerun.text.chat import ChatTemplate
    from forerun.tokenizers.tokenizer import Tokenizer

# The rules that keep the target's distribution: any request may choose among them.
_EXACT = (Keyed, Rejection, Block, Traversal, KSeq)


@dataclass(frozen=True)
class Assembly:
    """What was built, under the names that it goes by in results.

    uses_predictions: whether drafts look at what a request expects back. notes: lines that the user should see.
    weights: how many of the model's tensors are of each type. fingerprint: the same for two runs only if the keys and values
        of one mean the same in the other.
    lossy: the rule that lets texts differ from the target's own, empty if none.
    """

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    model: str
    draft: str
    verifier: str
    backend: str
    max_sequences: int
    uses_predictions: bool = True
    notes: tuple[str, ...] = ()
    lossy: str = ""
    weights: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str = ""

    def with_tokenizer(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> Assembly:
        """The same, reading prompts as another model of its vocabulary does, so that both are asked the same."""
        return replace(self, tokenizer=tokenizer, template=template)


def build(
    config: Config, target: FoundModel | None = None, draft_models: Mapping[str, FoundModel] = MappingProxyType({})
) -> Assembly:
    """Find, check, then load, in this order: what cannot work together is refused before weights are read.

    target, draft_models: the models by name, where several assemblies are to share them.
    Raises UsageError, CompositionError, ModelError or FetchError.
    """
    cascades = Cascades.of(config)
    verifier = _verifier(config)
    if cascades.mixtures:
        verifier = cascades.verifier(verifier)
    target = target or find_model(config.model, config)
    if target.template is not None:
        target.template.start()  # it is ready when the weights are
    drafting = Drafting(config, target, cascades, draft_models)
    drafts = drafting.drafts and not cascades.plain
    divide(config, target, drafting.reading_models)
    models = drafting.models if drafts else []
    controller = controller_for(config, target, drafts, models[0] if models else None)
    # Exact rules stay at hand beside the chosen one, but for a text that a cascade mixes.
    others = () if cascades.mixtures else tuple(rule() for rule in _EXACT if rule.name != verifier.name)
    engine = Engine(
        cascades.target(target.model, drafting.stages() if cascades.plain else ()),
        drafting.methods() if drafts else {},
        (verifier, *others),
        controller,
        max_sequences=config.max_sequences,
        keep_prefixes=config.keep_prefixes,
        shared_rows=shared_rows(config, target, controller),
    )
    backend = target.model.info.backend
    return Assembly(
        engine=engine,
        tokenizer=target.tokenizer,
        template=target.template,
        model=target.name,
        draft=drafting.name,
        verifier=verifier.name,
        backend=backend,
        max_sequences=config.max_sequences,
        uses_predictions=drafting.uses_predictions,
        notes=notes(config, backend) + (drafting.notes if drafts else ()),
        lossy=config.cascade or ("" if verifier.exact else verifier.name),
        weights=target.types,
        fingerprint=target.fingerprint(config),
    )


def _verifier(config: Config) -> Verifier:
    """The acceptance rule that the configuration names or holds."""
    if not isinstance(config.verifier, str):
        return config.verifier
    if config.verifier == "typical":
        from forerun.cascade.typical import Typical

        return Typical()
    return next(rule() for rule in _EXACT if rule.name == config.verifier)
