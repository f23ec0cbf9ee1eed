"""What may follow is a function of the text before it: compared with what a few lines of Python say of the same text."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from forerun.assembly import build
from forerun.config import Config
from forerun.core.transcript import Constraint
from forerun.errors import UsageError
from forerun.text.reasoning import THINK
from forerun.tokenizers.tokenizer import Tokenizer

pytest.importorskip("llguidance")

from forerun.structured import (
    AfterThinking,
    Grammar,
    GrammarConstraint,
    TokenBudget,
    all_of,
    choice,
    json_object,
    regex,
)
from forerun.structured.constraint import end_ids


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build(Config(model="toy", backend="toy")).tokenizer


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text))


def allowed(constraint: Constraint, path: Sequence[int]) -> set[int] | None:
    mask = constraint.allowed(path)
    return None if mask is None else set(np.flatnonzero(mask).tolist())


class Choice:
    """What a choice allows after some tokens, said by looking at the options."""

    def __init__(self, tokenizer: Tokenizer, options: Sequence[str]) -> None:
        self._options = [option.encode() for option in options]
        self._words = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self._control = tokenizer.control_ids
        self._ends = set(end_ids(tokenizer, ()))

    def allowed(self, path: Sequence[int]) -> set[int]:
        said = b"".join(self._words[token] for token in path)
        if any(token in self._ends for token in path) or not any(one.startswith(said) for one in self._options):
            return self._ends
        found = {
            token
            for token, word in enumerate(self._words)
            if word and token not in self._control and any(one.startswith(said + word) for one in self._options)
        }
        return found | (self._ends if said in self._options else set())


OPTIONS = ["the target", "the draft", "the", "Köln", "draft\tmodel", "日本", "the target model"]


@pytest.mark.parametrize("seed", range(8))
def test_a_choice_allows_what_leads_to_an_option_at_every_place_of_a_draft(tokenizer: Tokenizer, seed: int) -> None:
    """Also after paths that are looked at and not taken, among them some that no option begins with."""
    numbers, oracle = random.Random(seed), Choice(tokenizer, OPTIONS)
    constraint = GrammarConstraint(tokenizer, choice(OPTIONS))
    text: list[int] = []
    for _ in range(40):
        path: list[int] = []
        for _ in range(numbers.randrange(4)):
            assert allowed(constraint, path) == oracle.allowed([*text, *path])
            any_token = numbers.randrange(tokenizer.vocab_size)
            path.append(any_token if numbers.random() < 0.2 else numbers.choice(sorted(oracle.allowed([*text, *path]))))
        assert allowed(constraint, path) == oracle.allowed([*text, *path])
        if numbers.random() < 0.2:
            text = text[: numbers.randrange(len(text) + 1)]
            constraint.restart(text)
        else:
            token = numbers.choice([*path[:1], *sorted(oracle.allowed(text))])
            constraint.commit(token)
            text.append(token)


def test_a_choice_of_thousands(tokenizer: Tokenizer) -> None:
    options = [f"option {number}" for number in range(5000)]
    constraint, oracle = GrammarConstraint(tokenizer, choice(options)), Choice(tokenizer, options)
    path = ids(tokenizer, "option 4999")
    for place in range(len(path) + 1):
        assert allowed(constraint, path[:place]) == oracle.allowed(path[:place])


def test_a_text_that_begins_reads_its_grammar_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one takes a while, and where texts begin all others wait."""
    made: list[Grammar] = []
    matcher = Grammar.matcher

    def counted(self: Grammar, words: Any) -> Any:
        made.append(self)
        return matcher(self, words)

    monkeypatch.setattr(Grammar, "matcher", counted)
    constraint, oracle = GrammarConstraint(tokenizer, choice(OPTIONS)), Choice(tokenizer, OPTIONS)
    constraint.restart(())
    assert len(made) == 1
    for leave in (lambda token: constraint.commit(token), lambda token: constraint.allowed([token])):
        leave(ids(tokenizer, "the")[0])
        constraint.restart(())
        assert allowed(constraint, ()) == oracle.allowed(())
    assert len(made) == 3


@pytest.mark.parametrize(
    ("pattern", "text"), [(r"[a-z]{2,5}", "draft"), (r"(ab|cd)*x?", "ababx"), (r"\d+\.\d", "12.5")]
)
def test_a_pattern_may_end_where_it_matches(tokenizer: Tokenizer, pattern: str, text: str) -> None:
    constraint, path = GrammarConstraint(tokenizer, regex(pattern)), ids(tokenizer, text)
    ends = set(end_ids(tokenizer, ()))
    for place in range(len(path) + 1):
        said = tokenizer.decode(path[:place])
        assert (allowed(constraint, path[:place]) or set()) >= ends or not re.fullmatch(pattern, said)
        assert not (allowed(constraint, path[:place]) or set()) & ends or re.fullmatch(pattern, said)


def test_what_cannot_be_followed_is_refused_by_name(tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match="regular expression"):
        GrammarConstraint(tokenizer, regex("("))
    with pytest.raises(UsageError, match="no text can begin"):
        GrammarConstraint(tokenizer, regex(r"[^\s\S]"))


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_a_budget_closes_the_thinking_after_so_many_tokens(tokenizer: Tokenizer, limit: int) -> None:
    constraint = TokenBudget(tokenizer, limit, starts_inside=True)
    text: list[int] = []
    for word in ids(tokenizer, "the target model and the draft model")[:limit]:
        assert allowed(constraint, text) is None
        text.append(word)
    while (may := allowed(constraint, text)) is not None:
        assert len(may) == 1, "nothing but the closing tag"
        text.extend(may)
    assert tokenizer.decode(text[limit:]) == THINK.close
    with pytest.raises(UsageError, match="budget"):
        TokenBudget(tokenizer, -1)


def test_what_is_said_is_bound_after_thinking_only(tokenizer: Tokenizer) -> None:
    constraint = AfterThinking(tokenizer, GrammarConstraint(tokenizer, choice(["yes", "no"])), starts_inside=True)
    thought, oracle = ids(tokenizer, "hm, no: 42?" + THINK.close), Choice(tokenizer, ["yes", "no"])
    ends = set(end_ids(tokenizer, ()))
    for place in range(len(thought)):
        may = allowed(constraint, thought[:place])
        assert may is not None
        assert thought[place] in may
        assert not may & ends
    said = ids(tokenizer, "yes")
    for place in range(len(said) + 1):
        assert allowed(constraint, [*thought, *said[:place]]) == oracle.allowed(said[:place])
    for token in [*thought, *said]:
        constraint.commit(token)
    assert allowed(constraint, ()) == ends
    constraint.restart(thought)
    assert allowed(constraint, ()) == oracle.allowed(())


def test_several_constraints_allow_what_each_allows(tokenizer: Tokenizer) -> None:
    first, second = ["the target", "the draft"], ["the draft", "the end"]
    constraint = all_of([GrammarConstraint(tokenizer, choice(options)) for options in (first, second)])
    path = ids(tokenizer, "the draft")
    for place in range(len(path) + 1):
        one, other = (Choice(tokenizer, options).allowed(path[:place]) for options in (first, second))
        assert allowed(constraint, path[:place]) == one & other
        assert place == len(path) or path[place] in one & other
    with pytest.raises(UsageError, match="at least one"):
        all_of([])


def test_json_may_end_where_the_object_does(tokenizer: Tokenizer) -> None:
    constraint, path = GrammarConstraint(tokenizer, json_object()), ids(tokenizer, '{"a": [1, "x"]}')
    ends = set(end_ids(tokenizer, ()))
    for place, token in enumerate(path):
        may = allowed(constraint, path[:place]) or set()
        assert token in may
        assert not may & ends
    assert ends <= (allowed(constraint, path) or set())
