"""What every drafter promises, as checks to run on one of your own: the suite that forerun's drafters pass.

    from forerun.testing import check_drafter, target
    check_drafter(lambda: MyDrafter(target().info))

Safety (number of nodes, vocabulary, tree, q), independence and repeatability of sessions, whatever steps they observe; and
through the real engine the same text as plain decoding. Everything runs on a toy target of VOCAB tokens in milliseconds.

`CHECKS` has them one by one, to parametrize a test with: each takes a function that makes a fresh drafter for `target()`
and raises AssertionError that says what was not kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from forerun.backends.toy import ToyModel, random_logits, text_logits
from forerun.controllers.fixed import Fixed
from forerun.core.draft import ROOT, Draft
from forerun.core.model import KV, ForwardInput
from forerun.core.protocols import Drafter, DraftRequest, DraftSession, Verifier
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult, Verdict
from forerun.core.transcript import Transcript
from forerun.drafters.none import NoneDrafter
from forerun.engine import Engine, Method
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.rejection import Rejection

__all__ = ["CHECKS", "CONTEXT", "TEXT", "VOCAB", "Steps", "check_drafter", "draft_of", "target"]

Make = Callable[[], Drafter]
Check = Callable[[Make], None]

VOCAB = 12
CONTEXT = 110
TEXT = [1, 2, 3, 4, 5, 6, 1, 2, 3, 7, 8, 9, 1, 2, 3, 4, 10, 11, 5, 6, 1, 2, 0, 4] * 3

_GREEDY = Sampling(max_tokens=None)
_WARM = Sampling(temperature=0.9, max_tokens=None)
_FULL = Sampling(temperature=0.8, top_k=9, top_p=0.95, min_p=0.01, repetition_penalty=1.1, presence_penalty=0.2)
_PROMPTS = [TEXT[:10], TEXT[3:31], [5], TEXT[2:14]]


def target(seed: int = 5) -> ToyModel:
    """A target that babbles in the manner of TEXT, with an order-2 random tilt."""
    manner, tilt = text_logits(TEXT, VOCAB, 2), random_logits(VOCAB, seed, 1.5)
    return ToyModel(VOCAB, 2, lambda path: manner(path) * 0.5 + tilt(path), context=CONTEXT, name="target")


def check_drafter(make: Make) -> None:
    """Run every check on fresh drafters for `target()`. Raises AssertionError that names the first that failed."""
    for name, check in CHECKS.items():
        try:
            check(make)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def draft_of(
    drafter: Drafter, session: DraftSession, nodes: int, path: Sequence[int] = (), kv: KV | None = None
) -> Draft:
    """One draft for one text."""
    return drafter.propose([DraftRequest(session, nodes, path=tuple(path), kv=kv)])[0]


class Steps:
    """One text on the toy target, driven by hand so that any acceptance can be forced."""

    def __init__(self, drafter: Drafter, transcript: Transcript, model: ToyModel) -> None:
        self.drafter, self.transcript, self.model = drafter, transcript, model
        self.kv: KV = model.open()
        self.session: DraftSession = drafter.open(transcript)

    def read(self, count: int) -> None:
        """A chunk in the middle of the prompt: nothing is drafted, nothing is said."""
        input_tokens = tuple(self.transcript.tokens[self.kv.length : self.kv.length + count])
        with self.model.forward([ForwardInput(self.kv, input_tokens, logits=False)]) as output:
            output.commit(0, ())
            self.session.observe(StepResult(self.transcript, input_tokens, decoded=False))

    def draft(self, nodes: int) -> Draft:
        """What the drafter proposes now."""
        return draft_of(self.drafter, self.session, nodes)

    def settle(self, draft: Draft, accept: Callable[[Draft], Sequence[int]], bonus: int | None = None) -> None:
        """Commit the path that `accept` picks and a bonus (the target's greedy choice by default)."""
        input_tokens = tuple(self.transcript.tokens[self.kv.length :])
        with self.model.forward([ForwardInput(self.kv, input_tokens, draft)], self.drafter.needs) as output:
            rows = output.logits(0)
            path = tuple(accept(draft))
            last = rows[path[-1] + 1] if path else rows[0]
            added = int(np.argmax(last)) if bonus is None else bonus
            tokens = (*(draft.tokens[node] for node in path), added)
            for token in tokens:
                self.transcript.add(token)
            output.commit(0, path)
            hidden = {layer: output.hidden(0, layer) for layer in self.drafter.needs.hidden}
            verdict = Verdict(path, added)
            self.session.observe(
                StepResult(
                    self.transcript, input_tokens, draft, path, tokens, rows=rows, hidden=hidden, verdict=verdict
                )
            )


def nothing(_draft: Draft) -> Sequence[int]:
    """Accept no node."""
    return ()


def deepest(draft: Draft) -> Sequence[int]:
    """Accept the path to the deepest node."""
    return draft.path_to(max(range(len(draft)), key=lambda n: draft.depths[n])) if len(draft) else ()


def some(draft: Draft) -> Sequence[int]:
    """Accept half of that path."""
    path = deepest(draft)
    return path[: len(path) // 2]


def check_draft(draft: Draft, transcript: Transcript, nodes: int) -> None:
    """The promises a draft keeps by itself."""
    _holds(len(draft) <= nodes, f"{len(draft)} nodes were drafted, and {nodes} were asked for")
    _holds(all(0 <= token < VOCAB for token in draft.tokens), f"a token of {draft.tokens} is outside the vocabulary")
    for node in range(ROOT, len(draft)):
        _check_children(draft, draft.children(node))
    if transcript.keyed or transcript.request.sampling.greedy:
        _holds(draft.q is None, "q belongs to drafts that were drawn with noise of their own")


def _check_children(draft: Draft, children: Sequence[int]) -> None:
    tokens = [draft.tokens[child] for child in children]
    _holds(draft.with_replacement or len(set(tokens)) == len(tokens), f"siblings repeat a token: {tokens}")
    if draft.scores is not None:
        scores = [draft.scores[child] for child in children]
        _holds(all(0.0 <= score <= 1.0 + 1e-9 for score in scores), f"scores are outside [0, 1]: {scores}")
        _holds(draft.q is None or scores == sorted(scores, reverse=True), f"scores rise along drawn siblings: {scores}")
    if draft.q is None or not children:
        return
    proposals = [draft.q[child] for child in children]
    first = proposals[0]
    if first is None:
        _holds(all(q is None for q in proposals), "some siblings have a q and others none")
        return
    _holds(all(q is first for q in proposals), "siblings that were drawn together share one q array")
    _holds(first.dtype == np.float64 and first.shape == (VOCAB,), "q is float64 and as wide as the target's vocabulary")
    _holds(
        float(first.min()) >= 0.0 and abs(float(first.sum()) - 1.0) < 1e-12, "q is a distribution: not negative, sum 1"
    )
    _holds(all(first[token] > 0.0 for token in tokens), "a token was drawn that is impossible under q")


def _is_safe(make: Make, sampling: Sampling, keyed: bool) -> None:
    """Every draft is safe, whatever was accepted before; asking twice says the same; closing twice is harmless."""
    drafter, chooser = make(), random.Random(1)
    run = Steps(drafter, _transcript(TEXT[:30], sampling, keyed=keyed), target())
    run.read(9)
    run.read(14)
    for number in range(24):
        nodes = chooser.choice([0, 1, 2, 3, 5, 8, 13])
        draft = run.draft(nodes)
        check_draft(draft, run.transcript, nodes)
        if number % 5 == 4:
            _same([draft], [run.draft(nodes)], "proposing twice says two things")
        fitted = draft.fit(nodes=6, depth=4, tree=True)
        bonus = chooser.choice([None, chooser.randrange(VOCAB)])
        run.settle(fitted, chooser.choice([nothing, some, deepest]), bonus)
    run.session.finish()
    for _ in range(2):
        run.session.close()
    for _ in range(2):
        drafter.close()


def _drafts_nothing_unasked(make: Make) -> None:
    drafter = make()
    session = drafter.open(_transcript(TEXT, _GREEDY))
    _holds(len(draft_of(drafter, session, 0)) == 0, "something was drafted where no node was asked for")
    _holds(drafter.propose([]) == [], "no request gives no draft")


def _takes_long_jumps(make: Make) -> None:
    """A session may be asked late: after many tokens that it was told of only by their being there."""
    drafter, transcript = make(), _transcript([1], _GREEDY)
    session = drafter.open(transcript)
    check_draft(draft_of(drafter, session, 4), transcript, 4)
    for token in TEXT[1:]:
        transcript.add(token)
    check_draft(draft_of(drafter, session, 4), transcript, 4)


def _keeps_sessions_apart(make: Make) -> None:
    """A text is drafted for alike, alone and among others, in one call or in several."""
    prompts = [TEXT[:20], TEXT[5:40], [1, 2, 3]]

    def play(drafter: Drafter, chosen: Sequence[int], together: bool) -> dict[int, list[Draft]]:
        runs = {i: Steps(drafter, _transcript(prompts[i], _WARM), target()) for i in chosen}
        seen: dict[int, list[Draft]] = {i: [] for i in chosen}
        for _ in range(6):
            if together:
                drafts = drafter.propose([DraftRequest(run.session, 4) for run in runs.values()])
            else:
                drafts = [run.draft(4) for run in runs.values()]
            for (i, run), draft in zip(runs.items(), drafts, strict=True):
                seen[i].append(draft)
                run.settle(draft, some)
        return seen

    together, apart = play(make(), [0, 1, 2], True), play(make(), [0, 1, 2], False)
    for i in range(3):
        _same(together[i], apart[i], "asked for together, sessions say something else")
        if not getattr(make(), "shares_memory", False):
            _same(together[i], play(make(), [i], True)[i], "company changes a draft (set shares_memory if it may)")


def _repeats_itself(make: Make) -> None:
    def play() -> list[Draft]:
        run = Steps(make(), _transcript(TEXT[:33], _WARM), target())
        drafts = []
        for accept in [nothing, deepest, some, deepest, nothing, some]:
            drafts.append(run.draft(6))
            run.settle(drafts[-1], accept)
        return drafts

    one, other = play(), play()
    _same(one, other, "the same history gave other drafts")
    _holds([draft.scores for draft in one] == [draft.scores for draft in other], "the same history gave other scores")


def _leaves_nothing_of_a_path(make: Make) -> None:
    """After tokens that are not committed: the same promises, and nothing stays behind."""
    drafter, transcript = make(), _transcript(TEXT[:30], _WARM)
    session = drafter.open(transcript)
    before = draft_of(drafter, session, 5)
    check_draft(draft_of(drafter, session, 5, (4, 5, 6)), transcript, 5)
    check_draft(draft_of(drafter, session, 3, (7,)), transcript, 3)
    _same([before], [draft_of(drafter, session, 5)], "a path that was asked about stayed in the session")


def _writes_the_plain_text(make: Make, sampling: Sampling) -> None:
    plain = _complete(NoneDrafter(), Keyed(), _PROMPTS, sampling, 0)
    _holds(_complete(make(), Keyed(), _PROMPTS, sampling, 5) == plain, "the engine wrote another text")
    if sampling.greedy:
        _holds(_complete(make(), Rejection(), _PROMPTS, sampling, 5) == plain, "rejection wrote another greedy text")


def _runs_to_the_end_of_the_context(make: Make) -> None:
    sampling, prompts = Sampling(temperature=0.7, max_tokens=None), _PROMPTS[:2]
    plain = _complete(NoneDrafter(), Keyed(), prompts, sampling, 0)
    _holds(_complete(make(), Keyed(), prompts, sampling, 6) == plain, "near the end of the context the text is another")
    lengths = [len(text) + len(prompt) for text, prompt in zip(plain, prompts, strict=True)]
    _holds(lengths == [CONTEXT] * 2, f"the texts ended at {lengths}")


def _runs_under_ratio_rules(make: Make) -> None:
    """There is no string to compare with (the exact suite has the distribution); but it must run, and repeat itself."""
    sampling = Sampling(temperature=0.9, max_tokens=16)
    once = _complete(make(), Rejection(), _PROMPTS, sampling, 5)
    _holds(once == _complete(make(), Rejection(), _PROMPTS, sampling, 5), "a seed did not repeat its text")
    _holds(all(0 <= token < VOCAB for text in once for token in text), "a token outside the vocabulary was committed")


CHECKS: Mapping[str, Check] = {
    **{
        f"every draft is safe whatever was accepted ({name}, {noise})": partial(
            _is_safe, sampling=sampling, keyed=noise == "keyed"
        )
        for name, sampling in (("greedy", _GREEDY), ("warm", _WARM), ("full", _FULL))
        for noise in ("keyed", "ratio")
    },
    "nothing is drafted where no node is asked for": _drafts_nothing_unasked,
    "one-token prompts and long jumps": _takes_long_jumps,
    "sessions are independent": _keeps_sessions_apart,
    "the same history gives the same drafts": _repeats_itself,
    "a path that is asked about leaves nothing behind": _leaves_nothing_of_a_path,
    **{
        f"the engine writes the plain text ({name})": partial(_writes_the_plain_text, sampling=sampling)
        for name, sampling in (
            ("greedy", Sampling(max_tokens=16)),
            ("warm", Sampling(temperature=0.9, max_tokens=16)),
            (
                "full",
                Sampling(
                    temperature=1.1, top_k=6, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.1, max_tokens=16
                ),
            ),
        )
    },
    "the engine runs to the end of the context": _runs_to_the_end_of_the_context,
    "ratio rules run through the engine": _runs_under_ratio_rules,
}


def _complete(
    drafter: Drafter, verifier: Verifier, prompts: Sequence[Sequence[int]], sampling: Sampling, nodes: int
) -> list[list[int]]:
    methods = {"draft": Method(cheap=drafter)}
    engine = Engine(target(), methods, [verifier], Fixed(nodes), max_sequences=3, prefill_rows=8)
    requests = [Request(prompt, sampling, seed=11 + i, prediction=TEXT[7:50]) for i, prompt in enumerate(prompts)]
    sequences = [engine.add(request) for request in requests]
    while not engine.idle:
        engine.step()
    failed = engine.speculator.failures()
    engine.close()
    _holds(not failed, f"it failed: {failed}")
    _holds(all(sequence.finish_reason == "length" for sequence in sequences), "a request did not run to its length")
    return [sequence.output for sequence in sequences]


def _transcript(prompt: Sequence[int], sampling: Sampling, *, keyed: bool = True) -> Transcript:
    return Transcript(Request(prompt, sampling, seed=3, prediction=TEXT[4:60]), keyed=keyed)


def _same(one: Sequence[Draft], other: Sequence[Draft], otherwise: str) -> None:
    def shape(drafts: Sequence[Draft]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        return [(draft.tokens, draft.parents) for draft in drafts]

    _holds(shape(one) == shape(other), otherwise)


def _holds(condition: bool, otherwise: str) -> None:
    """Raise AssertionError(otherwise) unless the condition holds, also where `assert` is switched off."""
    if not condition:
        raise AssertionError(otherwise)
