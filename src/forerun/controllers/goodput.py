"""Draft as much as pays: tokens per second, over all live texts together (after SmartSpec's goodput, 2406.14066).

What drafters without a model would bring is known by calibrated probabilities (calibration); a gate on what really happened
has the last word about their drafts, and about whether they are asked at all (gate). A model is run where that is expected to
be quicker (model_use), and goes a level deeper while that pays. What is verified of all drafts together is decided by the
measured costs of a pass (costs, trimming).

Where a seed's text depends on what is drafted (every rule but keyed), the clock must not decide about that: such texts are
drafted for by a fixed number of nodes. So are those whose request says how many. With `unclocked=None`, neither is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.controllers.calibration import Calibration
from forerun.controllers.costs import CostCurve
from forerun.controllers.fixed import Fixed
from forerun.controllers.gate import Gate
from forerun.controllers.model_use import Expected, ModelUse
from forerun.controllers.trimming import best_first, trim
from forerun.core.draft import EMPTY, Draft
from forerun.core.estimate import RunningMean
from forerun.core.protocols import Candidate, DraftingCost, ModelPlan
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript

# While a step that drafts gains less than so many plain tokens, every so manyth step is plain, so that it is known what that
# costs.
_THIN = 0.5
_PLAIN_EVERY = 16
# Asked steps over which what they gain is remembered.
_LATELY = 50.0
# A rate must be so many times better than plain decoding's before speculation is worth its risk.
_MARGIN = 1.05


@dataclass
class Record:
    """What is remembered of one text: its gate, whether drafters were asked in this step, and its last draft, also what was
    not verified."""

    gate: Gate
    asked: bool = False
    draft: Draft = EMPTY


class Goodput:
    """Sizes drafts by what they are expected to earn.

    curve, model_curve: seconds of a pass of the target, and of the model that drafts, if one does, by rows. most: most nodes
    for each text. unclocked: nodes for texts whose seed would give another text if the clock decided; None lets it decide
    about all texts, those whose request says how many nodes it wants included: then that is the most.
    """

    name = "goodput"

    def __init__(
        self, curve: CostCurve, most: int = 16, model_curve: CostCurve | None = None, *, unclocked: int | None = 7
    ) -> None:
        self.curve = curve
        self.most = most
        # By the name of the memory that texts belong to: how well one key's are foreseen must not show in another's.
        self.calibrations: defaultdict[str, Calibration] = defaultdict(Calibration)
        self.model_use = ModelUse(curve, model_curve)
        self._fixed = None if unclocked is None else Fixed(min(most, unclocked))
        self._records: dict[Transcript, Record] = {}
        self._plan = ModelPlan(())
        self._foreseen = 0.0
        # Seconds that this step's asking took, and that learning from the one before it did.
        self._asking = 0.0
        # The same in plain steps.
        self._asking_share = 0.0
        # What steps that asked gained lately, in plain tokens, by memory; how many steps there were since a plain one.
        self._gains: defaultdict[str, RunningMean] = defaultdict(lambda: RunningMean(0.0, weight=1.0, memory=_LATELY))
        self._since_plain = 0
        self._clocked: list[int] = []
        self._live = 1
        # Whether a model might draft for any text of this step.
        self._models = False

    def nodes(self, transcript: Transcript) -> int:
        asked = transcript.request.speculation.num_speculative_tokens
        return self.most if self._fixed is None or transcript.keyed or asked is not None else self._fixed.most

    def asks(self, transcript: Transcript) -> bool:
        record = self._of(transcript)
        compares = self._since_plain >= _PLAIN_EVERY and self._gains[transcript.request.memory].value < _THIN
        record.asked = not self._is_clocked(transcript) or (record.gate.asks() and not compares)
        return record.asked

    def plan(self, candidates: Sequence[Candidate]) -> ModelPlan:
        self._live = max(1, len(candidates))
        self._clocked = [i for i, one in enumerate(candidates) if self._is_clocked(one.transcript)]
        chosen = [candidates[i] for i in self._clocked]
        self._models = any(candidate.unread is not None for candidate in chosen)
        self._plan = self.model_use.plan(chosen, self._at_hand)
        self._foreseen = self.model_use.seconds(self._plan)
        if self._fixed is None or len(chosen) == len(candidates):
            return self._plan
        levels = list(self._fixed.plan(candidates).levels)
        for i, count in zip(self._clocked, self._plan.levels, strict=True):
            levels[i] = count
        return ModelPlan(levels, 0.0)

    def trim(
        self, candidates: Sequence[Candidate], drafts: Sequence[Draft], rows: int, cost: DraftingCost
    ) -> list[Draft]:
        kept = list(drafts)
        chosen = [candidates[i] for i in self._clocked]
        self._asking = cost.seconds
        reading = self.model_use.spent(chosen, self._plan, cost)
        spent = max(0.0, cost.seconds + cost.model_seconds - reading)
        if not any(drafts):
            return kept
        if any(drafts[i].draws for i in self._clocked):
            # How long drafting took depends on what was drawn, and that must not decide what of it is verified.
            spent = self._foreseen
        # Prompts that the pass reads, too, are no cost of its tokens: drafts only pay for the rows that they add.
        prompts = self.curve(rows) - self.curve(self._live)
        rows += sum(len(draft) for i, draft in enumerate(drafts) if i not in self._clocked)
        open_ = [self._gated(one, drafts[i]) for one, i in zip(chosen, self._clocked, strict=True)]
        reach = [self._reached(one, draft) for one, draft in zip(chosen, open_, strict=True)]
        trimmed = trim(open_, reach, rows, lambda n: self.curve(n) - prompts + spent, _MARGIN)
        for i, draft in zip(self._clocked, trimmed, strict=True):
            kept[i] = draft
        return kept

    def observe(self, results: Sequence[StepResult]) -> None:
        if not results:
            return
        self._charge(results)
        for result in results:
            if result.decoded:
                record = self._of(result.sequence)
                self.calibrations[result.sequence.request.memory].observe(record.draft, result.tokens)
                if self._models:
                    self.model_use.observe(result)
                record.asked, record.draft = False, EMPTY

    def _charge(self, results: Sequence[StepResult]) -> None:
        """Tell the gates what the step gained. It held up all texts, for which those answer that asked or drafted."""
        decoded = [result for result in results if result.decoded]
        asked = [one for one in decoded if self._of(one.sequence).asked and not self.model_use.ran(one.sequence)]
        drafted = [one for one in asked if len(one.draft)]
        self._since_plain = self._since_plain + 1 if drafted else 0
        seconds, plain_rows = results[0].seconds.verify, sum(len(result.input_tokens) for result in results)
        rows = plain_rows + sum(len(result.draft) for result in results)
        if plain_rows > len(decoded):
            # What reading a prompt takes varies by more than drafts do.
            seconds = self.curve(rows)
        else:
            self.curve.observe(rows, seconds)
        if not asked:
            return
        plain = self.curve(len(decoded))
        self._asking_share = asking = len(decoded) / len(asked) * self._asking / plain
        verifying = len(decoded) / len(drafted) * (seconds - self.curve(plain_rows)) / plain if drafted else 0.0
        for result in asked:
            extra = verifying if len(result.draft) else 0.0
            gain = len(result.tokens) - 1.0 - asking - extra
            self._gains[result.sequence.request.memory].add(gain)
            self._of(result.sequence).gate.observe(gain, asking)

    def forget(self, transcript: Transcript) -> None:
        self._records.pop(transcript, None)
        self.model_use.forget(transcript)

    def _gated(self, candidate: Candidate, draft: Draft) -> Draft:
        """The draft, or nothing where a text's gate is closed: it is for drafters without a model."""
        record = self._of(candidate.transcript)
        record.draft = draft
        if not len(draft) or self.model_use.ran(candidate.transcript) or record.gate.open:
            return draft
        # What was drawn must not decide about itself, so a draft with drawn nodes promises nothing.
        promise = 0.0 if draft.draws else self._promise(candidate, draft)
        return draft if record.gate.allows(promise) else EMPTY

    def _promise(self, candidate: Candidate, draft: Draft) -> float:
        """What a draft is expected to gain, in plain tokens."""
        found = self._best(candidate, draft)
        return found.tokens * self._cost(0) / self._cost(found.nodes) - 1.0

    def _at_hand(self, candidate: Candidate) -> Expected:
        """What a candidate's own draft is expected to bring; with drawn nodes, all of it, whatever was drawn."""
        return self._best(candidate, candidate.draft)

    def _best(self, candidate: Candidate, draft: Draft) -> Expected:
        """The best start of a draft's best-first order, if all live texts had the same."""
        tokens, best = 1.0, Expected(1.0, 0.0)
        rate = 1.0 / self._cost(0)
        order = () if draft.draws else best_first([draft], [self._reached(candidate, draft)])
        for count, (_, _, probability) in enumerate(order, start=1):
            tokens += probability
            if tokens / self._cost(count) > rate:
                best, rate = Expected(tokens, count), tokens / self._cost(count)
        return best

    def _reached(self, candidate: Candidate, draft: Draft) -> list[float]:
        """Per node, the probability that it is reached."""
        return self.calibrations[candidate.transcript.request.memory].reached(draft)

    def _cost(self, nodes: float) -> float:
        """Seconds of a pass, per live text, if each had so many nodes."""
        return self.curve(self._live * (1.0 + nodes)) / self._live

    def _is_clocked(self, transcript: Transcript) -> bool:
        """Whether the clock decides about a text's drafts."""
        asked = transcript.request.speculation.num_speculative_tokens
        return self._fixed is None or (transcript.keyed and asked is None)

    def _of(self, transcript: Transcript) -> Record:
        record = self._records.get(transcript)
        if record is None:
            gain = self._gains[transcript.request.memory].value
            record = self._records[transcript] = Record(Gate(gain, self._asking_share))
        return record
