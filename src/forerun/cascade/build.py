"""Cascades as the config asks for them: which stages mix with which, checked against the draft before weights load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.cascade.mixtures import Mixture
from forerun.cascade.model import CascadeModel
from forerun.cascade.verifier import Cascade, PlainCascade
from forerun.config import Config
from forerun.core.model import Model
from forerun.core.protocols import Verifier
from forerun.drafters.grammar import Composition, Single, Spec, singles
from forerun.errors import CompositionError, UsageError

# Drafters that draw from a distribution of their own, which a cascade can mix with the target's.
_DRAW = ("model", "self")
PLAIN = "plain"


@dataclass(frozen=True)
class Cascades:
    """The rule of each stage, from the target down; no rules are lossless. plain: without speculation."""

    mixtures: tuple[Mixture, ...] = ()
    plain: bool = False

    @classmethod
    def of(cls, config: Config) -> Cascades:
        """What the config says. Raises UsageError for an unknown rule, a wrong alpha or a mix of plain and other stages."""
        if config.cascade is None:
            return cls()
        rules = config.cascade_rules
        plain = [rule == PLAIN for rule, _ in rules]
        if any(plain) and not all(plain):
            raise UsageError(
                f"the cascade {config.cascade!r} is plain in some stages only; make all of them plain, or none."
            )
        if any(plain) and config.verifier != "keyed":
            raise CompositionError(
                f"the verifier {config.verifier} has nothing to verify in a plain cascade, which drafts nothing; leave it out."
            )
        return cls(tuple(Mixture("chow" if rule == PLAIN else rule, alpha) for rule, alpha in rules), all(plain))

    def check(self, spec: Spec, target: str) -> None:
        """Raise CompositionError where the draft has no distribution that the rules could mix."""
        if not self.mixtures:
            return
        models = stages(spec)
        if self.plain or len(self.mixtures) > 1:
            if len(models) < len(self.mixtures) or (self.plain and len(singles(spec)) > len(self.mixtures)):
                wanted = "<".join(["model:NAME"] * len(self.mixtures))
                raise CompositionError(
                    f"a cascade of {len(self.mixtures)} stages below {target} needs the draft {wanted}, and the draft is "
                    f"{spec}; write one rule for each model."
                )
        elif not any(single.name in _DRAW for single in singles(spec)):
            raise CompositionError(
                f"the cascade {self.mixtures[0].rule} mixes {target} with the drafter's own distribution, and {spec} has "
                "none: it only proposes tokens; draft with a model (--draft model:NAME), or leave the cascade out."
            )

    def model(self, stage: int, models: Sequence[Model]) -> Model:
        """What drafts at a stage, 0 for the one below the target: the model, or its mixture with the stages below it."""
        if stage + 1 >= len(self.mixtures):
            return models[stage]
        return CascadeModel(self.model(stage + 1, models), models[stage], self.mixtures[stage + 1])

    def target(self, target: Model, models: Sequence[Model]) -> Model:
        """What the engine runs: the target, or in a plain cascade all stages in one model."""
        if not self.plain:
            return target
        return CascadeModel(self.model(0, models), target, self.mixtures[0])

    def verifier(self, within: Verifier) -> Verifier:
        """The lossy rule of the stage below the target, run by an exact one: `within`, or rejection where that is keyed.

        Raises CompositionError where `within` is not exact.
        """
        if self.plain:
            return PlainCascade()
        return Cascade(self.mixtures[0].rule, self.mixtures[0].alpha, None if within.keyed else within)


def stages(spec: Spec) -> list[Single]:
    """The models of `model:a<model:b<...`, from the one that drafts for the target down."""
    if isinstance(spec, Single):
        return [spec] if spec.name == "model" else []
    assert isinstance(spec, Composition)
    if spec.sign != "<":
        return []
    head, below = spec.parts
    return [*stages(head), *stages(below)] if stages(head) else []
