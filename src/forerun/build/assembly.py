"""The parts put together: target, drafter, verifier, controller, engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from forerun.build.cascades import Cascades
from forerun.build.control import controller_for
from forerun.build.drafters import Drafting
from forerun.build.plan import Plan
from forerun.build.sources import Source, find_model, notes
from forerun.controllers.goodput import Goodput
from forerun.core.protocols import Verifier
from forerun.drafters.none import NoneDrafter
from forerun.engine.engine import Engine

if TYPE_CHECKING:
    from forerun.text.chat import ChatTemplate
    from forerun.weights.tokenizer import Tokenizer


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


def build(plan: Plan, target: Source | None = None, partners: Mapping[str, Source] = MappingProxyType({})) -> Assembly:
    """Find, check, then load, in this order: what cannot work together is refused before weights are read.

    target, partners: the target and draft models by name, where several assemblies are to share them.
    Raises UsageError, CompositionError, ModelError or FetchError.
    """
    cascades = Cascades.of(plan)
    verifier = verifier_for(plan)
    if cascades.mixtures and not cascades.plain:
        verifier = cascades.verifier(None if verifier.shares_noise else verifier)
    target = target or find_model(plan.model, plan)
    drafting = Drafting(plan, target, cascades, partners)
    drafts = drafting.drafts and not cascades.plain
    controller = controller_for(plan, target, drafts, drafting.dear)
    engine = Engine(
        cascades.target(target.model, drafting.stages() if cascades.plain else ()),
        drafting.build(controller.judge if isinstance(controller, Goodput) else None) if drafts else NoneDrafter(),
        verifier,
        controller,
        max_sequences=plan.max_sequences,
        keep_prefixes=plan.keep_prefixes,
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
        max_sequences=plan.max_sequences,
        predicts=drafting.predicts,
        notes=notes(plan, backend) + (drafting.notes if drafts else ()),
        lossy=plan.cascade or ("" if verifier.exact else verifier.name),
    )


def verifier_for(plan: Plan) -> Verifier:
    """The acceptance rule that the plan names."""
    if plan.verifier == "keyed":
        from forerun.verifiers.keyed import Keyed

        return Keyed()
    if plan.verifier == "rejection":
        from forerun.verifiers.rejection import Rejection

        return Rejection()
    if plan.verifier == "block":
        from forerun.verifiers.block import Block

        return Block()
    if plan.verifier == "traversal":
        from forerun.verifiers.traversal import Traversal

        return Traversal()
    if plan.verifier == "typical":
        from forerun.verifiers.typical import Typical

        return Typical()
    from forerun.verifiers.kseq import KSeq

    return KSeq()
