"""Whether a drafter that runs a model is worth running, text by text and step by step.

It is where the tokens of its steps come faster than those of the drafts at hand, by what passes of both models cost here.
What it will earn is a running mean of what it earned for the text, and before that follows from the target's own
top-1 probabilities: where these are low, another model often proposes another token.

Reading a text for it is a purchase for an answer of unknown length, so it waits until it would have paid for itself on the
answer so far (ski rental: Karlin et al., Algorithmica 1988): wherever the answer ends, hardly more is lost than was to be
gained. What does not pay is tried again now and then, but not while other texts would have to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from forerun.controllers.costs import CostCurve
from forerun.core.choosing import top1_probability
from forerun.core.estimate import RunningMean
from forerun.core.protocols import Candidate, DraftingCost, ModelPlan
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript

# A rate must be so many times better than the one of the drafts at hand: estimates are rough.
_MARGIN = 1.01
# Most levels that a model may draft.
_DEEPEST = 8
# Tokens a step earns beyond its first, for each unit of the target's mean top-1 probability, before anything was seen
# (Qwen2.5-Coder 1.5B and 0.5B; LOG.md, 2026-11-30).
_GAIN = 2.2
# Levels, and nodes, of a model's draft before anything was seen.
_LEVELS = 3.0
# Tokens of a step without the model before anything was seen.
_TOKENS = 1.2
# Nodes of a step without the model before anything was seen.
_NODES = 2.0
# Steps that a mean of one text remembers.
_OWN = 8.0
# Steps that a mean over all texts remembers.
_ALL = 50.0
# The target's top-1 probability before any row was seen.
_TOP1 = 0.75
# Rows that this counts as.
_TOP1_WEIGHT = 4.0
# Rows of a text by which its mean top-1 probability goes.
_TOP1_ROWS = 32.0
# Steps until a model that does not pay is tried again, the first time.
_FIRST_WAIT = 24
# Steps until it is tried again at most; the wait doubles each time.
_LONGEST_WAIT = 192
# Share of a plain pass that a level is taken to cost where that was not measured.
_LEVEL = 0.3
# Share of a plain pass that reading one more token is taken to cost where that was not measured.
_READING = 0.04
# Rows of the pass by which the cost of reading a token is told from the model's curve.
_CHUNK = 32
# Observations that the mean cost of reading a token remembers.
_READING_MEMORY = 4.0
# Unread tokens that ride along in a level at no cost.
_FREE = 8
# A model that took less than this share of a level's time was not run.
_NOTHING = 0.1
# Tokens read at once from which the time that reading took can be told apart from that of drafting.
_MUCH = 64


@dataclass
class Record:
    """What is known of one text.

    top1: the target's probability of its likeliest token, a mean over `rows` rows. tokens: of a step with the model; None
    before it has run. tokens_without, nodes_without: of a step without it. left, wait: steps until it is tried though it does
    not pay. drafted: its levels in this step.
    """

    top1: RunningMean = field(default_factory=lambda: RunningMean(_TOP1, weight=_TOP1_WEIGHT, memory=_TOP1_ROWS))
    rows: int = 0
    tokens: RunningMean | None = None
    tokens_without: RunningMean = field(default_factory=lambda: RunningMean(_TOKENS, weight=_OWN, memory=_OWN))
    nodes_without: RunningMean = field(default_factory=lambda: RunningMean(_NODES, weight=_OWN, memory=_OWN))
    left: int = _FIRST_WAIT
    wait: int = _FIRST_WAIT
    drafted: int = 0


@dataclass(frozen=True)
class Expected:
    """What a step is expected to bring for one text: tokens, of so many nodes."""

    tokens: float
    nodes: float


class ModelUse:
    """Plans the levels of the model drafter.

    curve, level: seconds of a pass of the target and of the drafting model, by rows; the latter is taken to be a share of
    the former if not given.
    """

    def __init__(self, curve: CostCurve, level: CostCurve | None) -> None:
        self._curve = curve
        self._level = level or CostCurve({1: _LEVEL * curve(1)})
        reading = _READING * curve(1) if level is None else level(_CHUNK) / _CHUNK
        self._reading = RunningMean(reading, weight=_READING_MEMORY, memory=_READING_MEMORY)
        self._records: dict[Transcript, Record] = {}
        # Over all texts: what relates tokens to the top-1 probability (a line through 1), nodes and levels of a draft.
        self._moment = RunningMean(_GAIN * _TOP1**2, weight=_OWN, memory=_ALL)
        self._square = RunningMean(_TOP1**2, weight=_OWN, memory=_ALL)
        self._nodes = RunningMean(_LEVELS, weight=_OWN, memory=_ALL)
        self._levels = RunningMean(_LEVELS, weight=_OWN, memory=_ALL)

    def plan(self, candidates: Sequence[Candidate], at_hand: Callable[[Candidate], Expected]) -> ModelPlan:
        """Levels for each candidate. at_hand: what the draft that needs no model is expected to bring."""
        none = [0] * len(candidates)
        for candidate in candidates:
            if (record := self._records.get(candidate.transcript)) is not None:
                record.drafted = 0  # left over where the step before was cut short
        asked = [i for i, candidate in enumerate(candidates) if candidate.unread is not None and self._may(candidate)]
        if not asked:
            return ModelPlan(none)
        hand = [at_hand(candidate) for candidate in candidates]
        plain = sum(one.tokens for one in hand) / self._seconds(hand)
        eligible = [i for i in asked if self._is_read(candidates, i)]
        chosen, rate = self._best(candidates, hand, eligible, plain)
        if not chosen:
            chosen = [i for i in eligible if len(candidates) == 1 and self._tries(candidates[i].transcript)]
        for i in chosen:
            none[i] = _DEEPEST
        return ModelPlan(none, self._threshold(len(candidates), max(rate, plain)))

    def seconds(self, plan: ModelPlan) -> float:
        """What drafting by a plan is expected to take."""
        asked = sum(levels > 0 for levels in plan.levels)
        return self._levels.value * self._level(asked) if asked else 0.0

    def spent(self, candidates: Sequence[Candidate], plan: ModelPlan, cost: DraftingCost) -> float:
        """Learn what drafting took. The seconds that are not this step's alone: reading is paid once for all to come.

        A model that ran and proposed nothing is charged all the same.
        """
        asked = [candidate for candidate, levels in zip(candidates, plan.levels, strict=True) if levels]
        if not asked or (not cost.levels and cost.model_seconds < _NOTHING * self._level(1)):
            return 0.0
        levels = max(1, cost.levels)
        tokens = sum(max(0, read - _FREE) for read in cost.read)
        if tokens > _MUCH:
            drafting = levels * self._level(len(asked))
            self._reading.add(max(0.0, cost.model_seconds - drafting) / tokens)
        reading = min(tokens * self._reading.value, 0.95 * cost.model_seconds)
        if tokens <= _MUCH:
            self._level.observe(len(asked), (cost.model_seconds - reading) / levels)
        for candidate in asked:
            record = self._of(candidate.transcript)
            record.drafted = levels
            if record.tokens is None:
                record.tokens = RunningMean(self._expected(record), weight=_OWN, memory=_OWN)
        return reading

    def ran(self, transcript: Transcript) -> bool:
        """Whether the model drafted for a text in this step."""
        record = self._records.get(transcript)
        return record is not None and record.drafted > 0

    def observe(self, result: StepResult) -> None:
        """Learn what a step of a text wrote."""
        record = self._of(result.sequence)
        if record.drafted and record.tokens is not None:
            record.tokens.add(len(result.tokens))
            top1 = record.top1.value
            self._moment.add((len(result.tokens) - 1) * top1)
            self._square.add(top1 * top1)
            self._nodes.add(len(result.draft))
            self._levels.add(record.drafted)
        else:
            record.tokens_without.add(len(result.tokens))
            record.nodes_without.add(len(result.draft))
            if record.rows < _TOP1_ROWS and result.rows is not None:
                # One row a step says enough, and looking at more would cost more.
                temperature = result.sequence.request.sampling.temperature
                record.top1.add(top1_probability(result.rows[result.bonus_row], temperature))
                record.rows += 1
        record.drafted = 0

    def forget(self, transcript: Transcript) -> None:
        self._records.pop(transcript, None)

    def _of(self, transcript: Transcript) -> Record:
        record = self._records.get(transcript)
        if record is None:
            record = self._records[transcript] = Record()
        return record

    def _may(self, candidate: Candidate) -> bool:
        """An answer's last token needs no draft, and before its first one nothing is known of it."""
        return candidate.depth > 0 and candidate.transcript.generated > 0

    def _expected(self, record: Record) -> float:
        """Tokens of a step with the model."""
        if record.tokens is not None:
            return record.tokens.value
        return 1.0 + record.top1.value * self._moment.value / self._square.value

    def _with_model(self, candidate: Candidate) -> Expected:
        return Expected(self._expected(self._of(candidate.transcript)), self._nodes.value)

    def _without_model(self, candidate: Candidate) -> Expected:
        record = self._of(candidate.transcript)
        return Expected(record.tokens_without.value, record.nodes_without.value)

    def _seconds(self, expected: Sequence[Expected], levels: float = 0.0) -> float:
        """Of a step that verifies so much, with so many models' levels before it."""
        drafting = self._levels.value * self._level(levels) if levels else 0.0
        return self._curve(sum(1.0 + one.nodes for one in expected)) + drafting

    def _is_read(self, candidates: Sequence[Candidate], index: int) -> bool:
        """Whether the model may draft for one of them without more reading than is worth it."""
        price = max(0, (candidates[index].unread or 0) - _FREE) * self._reading.value
        if price <= self._curve(1):
            return True
        without = [self._without_model(candidate) for candidate in candidates]
        own = self._with_model(candidates[index])
        # The others of a batch gain nothing by it, and wait.
        together = [own if i == index else one for i, one in enumerate(without)]
        usual = self._seconds(without) / sum(one.tokens for one in without)
        saved = sum(one.tokens for one in together) * usual - self._seconds(together, 1)
        generated, remaining = candidates[index].transcript.generated, candidates[index].transcript.remaining
        steps = (generated if remaining is None else min(generated, remaining)) / own.tokens
        return steps * saved >= price

    def _best(
        self, candidates: Sequence[Candidate], hand: Sequence[Expected], eligible: Sequence[int], plain: float
    ) -> tuple[list[int], float]:
        """The texts for which to run the model so that all together come fastest, and the rate; none where that is plain."""
        own = {i: self._with_model(candidates[i]) for i in eligible}
        ranked = sorted(eligible, key=lambda i: hand[i].tokens - own[i].tokens)
        best, best_rate = 0, _MARGIN * plain
        for count in range(1, len(ranked) + 1):
            chosen = set(ranked[:count])
            expected = [own[i] if i in chosen else one for i, one in enumerate(hand)]
            rate = sum(one.tokens for one in expected) / self._seconds(expected, count)
            if rate > best_rate:
                best, best_rate = count, rate
        for i in ranked[:best]:
            record = self._of(candidates[i].transcript)
            record.wait = record.left = _FIRST_WAIT
        return ranked[:best], best_rate

    def _tries(self, transcript: Transcript) -> bool:
        """Whether it is time to try the model though it does not pay. Asked once a step."""
        record = self._of(transcript)
        record.left -= 1
        if record.left > 0:
            return False
        record.wait = record.left = min(2 * record.wait, _LONGEST_WAIT)
        return True

    def _threshold(self, live: int, rate: float) -> float:
        """The probability below which a node is not worth another level: what that costs at the step's rate."""
        row = (self._curve(live + 7) - self._curve(live + 3)) / 4
        return min(0.95, rate * (self._level(live) / live + row))
