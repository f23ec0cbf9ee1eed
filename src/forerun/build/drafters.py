"""From a draft in the language of `drafters.grammar` to a drafter, with everything it needs found and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from forerun.build.cascades import Cascades, stages
from forerun.build.plan import Plan
from forerun.build.sources import Source, find_model
from forerun.core.protocols import Drafter, Model
from forerun.drafters.choice import Choice, Judge
from forerun.drafters.grammar import KNOWN, Composition, Single, Spec, assemble, parse, singles
from forerun.drafters.none import NoneDrafter
from forerun.drafters.plugins import Factory, Host, Plugin, installed
from forerun.errors import CompositionError, UsageError

if TYPE_CHECKING:
    from forerun.drafters.model import Helper

# What `auto` drafts with: everything that costs next to nothing, in one tree; and a draft model that is on this machine
# already, where it is worth more.
AUTO = "suffix+recycling"


class Drafting:
    """A draft that was read and whose models were found and compared with the target, but not loaded.

    Raises UsageError for a draft that makes no sense, CompositionError for a model of another vocabulary, or for a
    cascade of which the drafter can have no part. known: draft models that were found already, by name.
    """

    def __init__(self, plan: Plan, target: Source, cascades: Cascades, known: Mapping[str, Source]) -> None:
        self._plan, self._target, self._cascades = plan, target, cascades
        self._plugins: dict[str, tuple[Plugin, Factory]] = {}
        self.spec: Spec = self._parsed(_auto(plan) if plan.draft == "auto" else plan.draft)
        cascades.check(self.spec, target.name)
        self._partners: dict[str, Source] = {}
        for single in singles(self.spec):
            if single.name == "model" and single.argument not in self._partners:
                self._partners[single.argument] = self._partner(single.argument, known)
        if cascades.plain or len(cascades.mixtures) > 1:
            self._check_stages()

    def _parsed(self, text: str) -> Spec:
        """What the text says; other packages are looked at only for names that are not known here."""
        try:
            return parse(text)
        except UsageError:
            found = installed(KNOWN)
            spec = parse(text, {**KNOWN, **dict.fromkeys(found, "")})
        named = {single.name for single in singles(spec)} & found.keys()
        self._plugins = {name: (found[name], found[name].load()) for name in sorted(named)}
        return spec

    @property
    def name(self) -> str:
        """The draft as results show it."""
        return str(self.spec)

    @property
    def drafts(self) -> bool:
        """Whether anything is ever proposed."""
        return any(single.name != "none" for single in singles(self.spec))

    def build(self, judge: Judge | None) -> Drafter:
        """Load what it needs. judge: decides between the sides of `|`, and whether a model drafts at all.

        Raises CompositionError, ModelError or BackendError.
        """
        drafter = assemble(self.spec, self._make, judge)
        chosen = isinstance(self.spec, Composition) and self.spec.sign == "|"
        if judge is None or chosen or not any(single.name in ("model", "self") for single in singles(self.spec)):
            return drafter
        return Choice(NoneDrafter(), drafter, judge)

    def stages(self) -> list[Model]:
        """The models of `model:a<model:b`, from the one that drafts for the target down, loaded."""
        return [self._partners[single.argument].model for single in stages(self.spec)]

    def _check_stages(self) -> None:
        """Stages of a cascade write in each other's ids: every one must be of the target's vocabulary."""
        from forerun.weights.vocabulary import compare

        for single in stages(self.spec):
            partner = self._partners[single.argument]
            report = compare(self._target.tokenizer, partner.tokenizer)
            if not report.shared:
                raise CompositionError(
                    f"{partner.name} cannot be a stage of a cascade below {self._target.name}: {report.describe()}."
                )

    def _partner(self, name: str, known: Mapping[str, Source]) -> Source:
        from forerun.weights.vocabulary import compare

        partner = known[name] if name in known else find_model(name, self._plan)
        report = compare(self._target.tokenizer, partner.tokenizer)
        if not report.shared:
            raise CompositionError(f"{partner.name} cannot draft for {self._target.name}: {report.describe()}.")
        return partner

    def _make(self, single: Single, helper: Drafter | None) -> Drafter:
        if single.name == "model":
            from forerun.drafters.model import ModelDrafter

            model = self._partners[single.argument].model
            if len(self._cascades.mixtures) > 1:
                model = self._cascades.model(stages(self.spec).index(single), self.stages())
            return ModelDrafter(model, self._target.model.info, helper=cast("Helper | None", helper))
        if single.name in self._plugins:
            plugin, factory = self._plugins[single.name]
            return plugin.make(factory, Host(self._target.model.info, self._target.tokenizer, single.argument))
        made = _MAKERS.get(single.name)
        if made is None:
            raise UsageError(f"the drafter {single.name!r} cannot be built here.")
        return made(self._plan, self._target)


def _auto(plan: Plan) -> str:
    from forerun.models import Cache, find
    from forerun.models.catalogue import lookup

    entry = None if plan.backend == "toy" else lookup(plan.model)
    if entry is None or entry.drafter is None or Cache().get(find(entry.drafter)) is None:
        return AUTO
    if plan.cascade is not None:
        return f"model:{entry.drafter}"  # a cascade mixes with what a model thinks
    return f"{AUTO}|model:{entry.drafter}"


def _none(plan: Plan, target: Source) -> Drafter:
    from forerun.drafters.none import NoneDrafter

    return NoneDrafter()


def _ngram(plan: Plan, target: Source) -> Drafter:
    from forerun.drafters.ngram import NgramDrafter

    return NgramDrafter(plan.prompt_lookup_min, plan.prompt_lookup_max)


def _suffix(plan: Plan, target: Source) -> Drafter:
    from forerun.drafters.history import History
    from forerun.drafters.suffix import SuffixDrafter

    if plan.memory is None:
        return SuffixDrafter()
    return SuffixDrafter(History.load(plan.memory, vocabulary=target.vocabulary))


def _recycling(plan: Plan, target: Source) -> Drafter:
    from forerun.drafters.recycling import RecyclingDrafter

    return RecyclingDrafter(target.model.info.usable_vocab)


def _logitspec(plan: Plan, target: Source) -> Drafter:
    from forerun.drafters.logitspec import LogitSpecDrafter

    return LogitSpecDrafter(target.model.info.usable_vocab)


def _prediction(plan: Plan, target: Source) -> Drafter:
    from forerun.drafters.prediction import PredictionDrafter

    return PredictionDrafter(target.model.info.usable_vocab)


def _lookahead(plan: Plan, target: Source) -> Drafter:
    from forerun.drafters.lookahead import LookaheadDrafter

    return LookaheadDrafter(target.model.info.usable_vocab)


_MAKERS: Mapping[str, Callable[[Plan, Source], Drafter]] = {
    "none": _none,
    "ngram": _ngram,
    "suffix": _suffix,
    "recycling": _recycling,
    "logitspec": _logitspec,
    "prediction": _prediction,
    "lookahead": _lookahead,
}
