"""The parts put together: target, drafter, verifier, controller, engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from forerun.assembly.cascades import Cascades
from forerun.assembly.controllers import controller_for
from forerun.assembly.drafters import Drafting
from forerun.assembly.models import Source, find_model, notes
from forerun.config import Config
from forerun.controllers.goodput import Goodput
from forerun.core.protocols import Verifier
from forerun.drafters.none import NoneDrafter
from forerun.engine.engine import Engine

if TYPE_CHECKING:
    from forerun.text.chat import ChatTemplate
    from forerun.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Assembly:
    """What was built, under the names that it goes by in results.

    predicts: whether drafts look at what a request expects back. notes: lines that the user should see.
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
    predicts: bool = True
    notes: tuple[str, ...] = ()
    lossy: str = ""

    def among(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> Assembly:
        """The same, reading prompts as another model of its vocabulary does, so that both are asked the same."""
        return replace(self, tokenizer=tokenizer, template=template)


def build(
    config: Config, target: Source | None = None, partners: Mapping[str, Source] = MappingProxyType({})
) -> Assembly:
    """Find, check, then load, in this order: what cannot work together is refused before weights are read.

    target, partners: the target and draft models by name, where several assemblies are to share them.
    Raises UsageError, CompositionError, ModelError or FetchError.
    """
    cascades = Cascades.of(config)
    verifier = verifier_for(config)
    if cascades.mixtures and not cascades.plain:
        verifier = cascades.verifier(None if verifier.shares_noise else verifier)
    target = target or find_model(config.model, config)
    if target.template is not None:
        target.template.start()  # it is ready when the weights are
    drafting = Drafting(config, target, cascades, partners)
    drafts = drafting.drafts and not cascades.plain
    controller = controller_for(config, target, drafts, drafting.dear)
    engine = Engine(
        cascades.target(target.model, drafting.stages() if cascades.plain else ()),
        drafting.build(controller.judge if isinstance(controller, Goodput) else None) if drafts else NoneDrafter(),
        verifier,
        controller,
        max_sequences=config.max_sequences,
        keep_prefixes=config.keep_prefixes,
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
        predicts=drafting.predicts,
        notes=notes(config, backend) + (drafting.notes if drafts else ()),
        lossy=config.cascade or ("" if verifier.exact else verifier.name),
    )


def verifier_for(config: Config) -> Verifier:
    """The acceptance rule that the config names."""
    if config.verifier == "keyed":
        from forerun.verifiers.keyed import Keyed

        return Keyed()
    if config.verifier == "rejection":
        from forerun.verifiers.rejection import Rejection

        return Rejection()
    if config.verifier == "block":
        from forerun.verifiers.block import Block

        return Block()
    if config.verifier == "traversal":
        from forerun.verifiers.traversal import Traversal

        return Traversal()
    if config.verifier == "typical":
        from forerun.verifiers.typical import Typical

        return Typical()
    from forerun.verifiers.kseq import KSeq

    return KSeq()
