"""What every `Model` promises: rows, transactions, and the same bits whatever else is in the pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.model import KV, Floats, ForwardInput, Model, Needs
from forerun.errors import BackendError
from tests.contract.models import MODELS, Implementation, read, same

VOCAB = 50
# Two subtrees with siblings that displace ancestors: 0 -> (2 -> (5), 4), 1 -> (3 -> 6).
TREE = Draft((7, 8, 9, 10, 11, 7, 9), (ROOT, ROOT, 0, 1, 0, 2, 3))
PATHS = [TREE.path_to(node) for node in range(ROOT, len(TREE))]


@pytest.fixture(scope="module", params=MODELS, ids=lambda implementation: implementation.name)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    found: Implementation = request.param
    return found


@pytest.fixture(scope="module")
def model(implementation: Implementation) -> Iterator[Model]:
    model = implementation.make()
    yield model
    model.close()


@pytest.fixture
def exact(model: Model) -> Model:
    """The model, where it declares batch invariance."""
    if not model.info.batch_invariant:
        pytest.skip("declares no batch invariance")
    return model


@pytest.fixture
def branching(model: Model) -> Model:
    """The model, where it verifies trees."""
    if not model.info.tree:
        pytest.skip("verifies chains alone")
    return model


def text(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, length))


def row(model: Model, tokens: Sequence[int]) -> Floats:
    """Logits after `tokens`, from a fresh sequence in one pass without company."""
    kv = model.open()
    with model.forward([ForwardInput(kv, tuple(tokens))]) as output:
        found: Floats = output.logits(0)[-1].copy()
    kv.close()
    return found


def equal(left: NDArray[np.float32], right: NDArray[np.float32], model: Model) -> bool:
    """The same bits where the model promises that, else nearly the same."""
    if model.info.batch_invariant:
        return same([np.ascontiguousarray(left)], [np.ascontiguousarray(right)])
    return bool(np.allclose(left, right, rtol=1e-3, atol=1e-3))


# Rows


def test_info_is_possible(model: Model) -> None:
    info = model.info
    assert 0 < info.usable_vocab <= info.vocab_size
    assert info.context > 0
    assert info.name
    assert info.backend


def test_rows_of_logits(branching: Model) -> None:
    kvs = [read(branching, text(5)) for _ in range(3)]
    inputs = [
        ForwardInput(kvs[0], (1,)),
        ForwardInput(kvs[1], (1, 2), TREE),
        ForwardInput(kvs[2], (1, 2, 3), logits=False),
    ]
    with branching.forward(inputs) as output:
        shapes = [output.logits(i).shape for i in range(3)]
        assert output.logits(0).dtype == np.float32
    vocab = branching.info.vocab_size
    assert shapes == [(1, vocab), (1 + len(TREE), vocab), (0, vocab)]


def test_every_row(model: Model) -> None:
    tokens = text(9)
    with model.forward([ForwardInput(model.open(), tokens, Draft.chain((3, 4)))], Needs(every_row=True)) as output:
        rows = output.logits(0).copy()
    assert rows.shape == (11, model.info.vocab_size)
    for end in range(1, 10):
        assert equal(rows[end - 1], row(model, tokens[:end]), model)
    assert equal(rows[-1], row(model, (*tokens, 3, 4)), model)


def test_logits_depend_on_the_text(model: Model) -> None:
    assert not np.array_equal(row(model, (1, 2, 3)), row(model, (1, 2, 4)))
    assert not np.array_equal(row(model, (1, 2, 3)), row(model, (2, 1, 3)))


def test_hidden_states(branching: Model) -> None:
    info = branching.info
    if not info.hidden:
        pytest.skip("reports no hidden states")
    layers = tuple(range(info.hidden))
    with branching.forward([ForwardInput(branching.open(), text(4), TREE)], Needs(hidden=layers)) as output:
        for layer in layers:
            assert output.hidden(0, layer).shape == (4 + len(TREE), info.width)


def test_no_feeds(model: Model) -> None:
    with model.forward([]):
        pass


# Batch invariance


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_of_a_prompt(exact: Model, implementation: Implementation, chunk: int) -> None:
    prompt = text(150)
    kv = exact.open()
    last = np.empty(0, np.float32)
    for at in range(0, len(prompt), chunk):
        with exact.forward([ForwardInput(kv, prompt[at : at + chunk])]) as output:
            last = output.logits(0)[-1].copy()
            output.commit(0, ())
    assert same([last], [row(exact, prompt)])
    assert same(implementation.contents(kv), implementation.contents(read(exact, prompt)))


@pytest.mark.parametrize("before", [0, 3, 60, 62, 63, 64, 130])
def test_every_node_of_a_tree(branching: Model, before: int) -> None:
    prompt = text(before + 1, before)
    with branching.forward([ForwardInput(read(branching, prompt[:-1]), prompt[-1:], TREE)]) as output:
        rows = output.logits(0).copy()
    for node in range(ROOT, len(TREE)):
        path = tuple(TREE.tokens[i] for i in TREE.path_to(node))
        assert equal(rows[1 + node], row(branching, prompt + path), branching)


def test_siblings_in_any_order(exact: Model, branching: Model) -> None:
    prompt = text(70)
    swapped = Draft((8, 10, 9, 7, 11, 9, 7), (ROOT, 0, 1, ROOT, 3, 3, 5))
    places = {2: 5, 5: 6, 6: 2, 4: 4, 0: 3, 1: 0, 3: 1}
    rows = []
    for draft in (TREE, swapped):
        with branching.forward([ForwardInput(read(branching, prompt[:-1]), prompt[-1:], draft)]) as output:
            rows.append(output.logits(0).copy())
    for node, other in places.items():
        assert same([rows[0][1 + node]], [rows[1][1 + other]])


def test_company_changes_nothing(exact: Model, branching: Model) -> None:
    """Sequences of different lengths, prefilling, decoding and verifying, in several orders."""
    prompts = [text(length, length) for length in (1, 20, 64, 65, 140)]
    drafts = [EMPTY, TREE, Draft.chain((5, 6, 7)), TREE, EMPTY]
    alone = []
    for prompt, draft in zip(prompts, drafts, strict=True):
        with exact.forward([ForwardInput(read(exact, prompt[:-1]), prompt[-1:], draft)]) as output:
            alone.append(output.logits(0).copy())
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4]):
        inputs = [
            ForwardInput(read(exact, prompts[i][:-1]), prompts[i][-1:], drafts[i])
            if i % 2
            else ForwardInput(exact.open(), prompts[i], drafts[i])
            for i in order
        ]
        with exact.forward(inputs) as output:
            for place, i in enumerate(order):
                assert same([output.logits(place)], [alone[i]])


@pytest.mark.parametrize("company", range(1, 40))
def test_a_row_in_every_place(exact: Model, company: int) -> None:
    """One-row inputs before and behind: the row that is watched stands in every place of a block."""
    prompt = text(12)
    inputs = [ForwardInput(exact.open(), text(1, i)) for i in range(company)] + [ForwardInput(exact.open(), prompt)]
    with exact.forward(inputs) as output:
        assert same([output.logits(company)[-1]], [row(exact, prompt)])


# Transactions


@pytest.mark.parametrize("path", PATHS, ids=str)
@pytest.mark.parametrize("before", [0, 5, 62, 127])
def test_commit_keeps_one_path(
    branching: Model, implementation: Implementation, path: tuple[int, ...], before: int
) -> None:
    prompt = text(before)
    kv = read(branching, prompt)
    with branching.forward([ForwardInput(kv, (3, 4), TREE)]) as output:
        output.commit(0, path)
        assert kv.length == before + 2 + len(path)
    _holds(branching, implementation, kv, [*prompt, 3, 4, *(TREE.tokens[node] for node in path)])


@pytest.mark.parametrize("kept", range(6))
def test_commit_of_a_chain(model: Model, implementation: Implementation, kept: int) -> None:
    draft = Draft.chain((9, 8, 7, 6, 5))
    kv = read(model, text(61))
    with model.forward([ForwardInput(kv, (1,), draft)]) as output:
        output.commit(0, range(kept))
    _holds(model, implementation, kv, [*text(61), 1, *draft.tokens[:kept]])


def test_every_sequence_keeps_its_own(branching: Model, implementation: Implementation) -> None:
    texts = [text(3, 1), text(64, 2), text(30, 3), text(7, 4)]
    kvs = [read(branching, tokens) for tokens in texts]
    drafts = [TREE, EMPTY, Draft.chain((1, 2, 3)), TREE]
    inputs = [ForwardInput(kv, (5,), draft) for kv, draft in zip(kvs, drafts, strict=True)]
    with branching.forward(inputs) as output:
        output.commit(3, (1, 3, 6))
        output.commit(0, (0, 4))
        output.commit(2, ())
    _holds(branching, implementation, kvs[0], [*texts[0], 5, 7, 11])
    _holds(branching, implementation, kvs[1], texts[1])
    _holds(branching, implementation, kvs[2], [*texts[2], 5])
    _holds(branching, implementation, kvs[3], [*texts[3], 5, 8, 10, 9])


def test_uncommitted_rolls_back(branching: Model, implementation: Implementation) -> None:
    kv = read(branching, text(20))
    with branching.forward([ForwardInput(kv, (1, 2, 3), TREE)]):
        assert kv.length == 20
    _holds(branching, implementation, kv, text(20))


def test_an_exception_rolls_back_what_was_not_committed(branching: Model, implementation: Implementation) -> None:
    kvs = [read(branching, text(20)), read(branching, text(20))]
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117, PT012
        with branching.forward([ForwardInput(kv, (1,), TREE) for kv in kvs]) as output:
            output.commit(0, (1,))
            raise KeyboardInterrupt
    _holds(branching, implementation, kvs[0], [*text(20), 1, 8])
    _holds(branching, implementation, kvs[1], text(20))


def test_truncate(model: Model, implementation: Implementation) -> None:
    for length in (0, 1, 63, 64, 65, 100):
        kv = read(model, text(100))
        kv.truncate(length)
        _holds(model, implementation, kv, text(100)[:length])
        with pytest.raises(ValueError, match="cut"):
            kv.truncate(length + 1)
        with pytest.raises(ValueError, match="cut"):
            kv.truncate(-1)


def test_fork(model: Model, implementation: Implementation) -> None:
    first = read(model, text(70))
    second = first.fork()
    with model.forward([ForwardInput(first, (1, 2)), ForwardInput(second, (3,))]) as output:
        output.commit(0, ())
        output.commit(1, ())
    third = second.fork()
    second.truncate(30)
    _holds(model, implementation, first, [*text(70), 1, 2])
    _holds(model, implementation, second, text(30))
    first.close()
    _holds(model, implementation, third, [*text(70), 3])


def test_closing_twice_is_harmless(model: Model) -> None:
    kv = read(model, text(3))
    kv.close()
    kv.close()
    assert kv.length == 0


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_history_equals_a_fresh_prefill(
    branching: Model, implementation: Implementation, data: st.DataObject
) -> None:
    """Random rounds over two sequences: drafts, partial accepts, roll-backs, cuts and forks."""
    pairs: list[tuple[KV, list[int]]] = [(branching.open(), []), (branching.open(), [])]
    tokens = st.integers(0, VOCAB - 1)
    for _ in range(data.draw(st.integers(1, 5), "rounds")):
        inputs, paths = [], []
        for kv, _ in pairs:
            input_tokens = tuple(data.draw(st.lists(tokens, min_size=1, max_size=40), "input_tokens"))
            size = data.draw(st.integers(0, 8), "nodes")
            parents = tuple(data.draw(st.integers(ROOT, node - 1), "parent") for node in range(size))
            draft = Draft(tuple(data.draw(tokens, "token") for _ in range(size)), parents)
            inputs.append(ForwardInput(kv, input_tokens, draft))
            leaf = data.draw(st.integers(ROOT, size - 1), "leaf")
            paths.append(draft.path_to(leaf) if data.draw(st.booleans(), "commit") else None)
        with branching.forward(inputs) as output:
            for i, (feed, path) in enumerate(zip(inputs, paths, strict=True)):
                if path is not None:
                    output.commit(i, path)
                    pairs[i][1].extend([*feed.input_tokens, *(feed.draft.tokens[node] for node in path)])
        kv, held = pairs[0]
        if data.draw(st.booleans(), "cut"):
            length = data.draw(st.integers(0, len(held)), "length")
            kv.truncate(length)
            del held[length:]
        if data.draw(st.booleans(), "fork"):
            pairs[1] = (kv.fork(), list(held))
    for kv, held in pairs:
        _holds(branching, implementation, kv, held)


# Bad inputs


@pytest.mark.parametrize("token", [-1, 10**6])
@pytest.mark.parametrize("drafted", [False, True])
def test_token_ids_outside_the_vocabulary(
    model: Model, implementation: Implementation, token: int, drafted: bool
) -> None:
    good, bad = read(model, text(5)), read(model, text(5))
    feed = ForwardInput(bad, (1,), Draft.chain((token,))) if drafted else ForwardInput(bad, (1, token))
    with pytest.raises(BackendError, match=str(token)), model.forward([ForwardInput(good, (1,)), feed]):
        pass
    for kv in (good, bad):
        _holds(model, implementation, kv, text(5))


def test_past_the_context(model: Model, implementation: Implementation) -> None:
    context = model.info.context
    kv = read(model, text(context - 3))
    with pytest.raises(BackendError, match=str(context)), model.forward([ForwardInput(kv, text(4))]):
        pass
    with (
        pytest.raises(BackendError, match=str(context)),
        model.forward([ForwardInput(kv, (1,), Draft.chain((1, 2, 3)))]),
    ):
        pass
    _holds(model, implementation, kv, text(context - 3), probe=False)
    with model.forward([ForwardInput(kv, (1,), Draft.chain((2, 3)))]) as output:
        output.commit(0, (0, 1))
    assert kv.length == context
    with pytest.raises(BackendError, match=str(context)), model.forward([ForwardInput(kv, (1,))]):
        pass


def test_siblings_may_outnumber_the_context(branching: Model) -> None:
    """The context counts depth: many nodes at the last position are fine."""
    context = branching.info.context
    prompt = text(context - 1)
    draft = Draft(tuple(range(20)), (ROOT,) * 20)
    with branching.forward([ForwardInput(read(branching, prompt[:-1]), prompt[-1:], draft)]) as output:
        rows = output.logits(0).copy()
    assert equal(rows[1 + 7], row(branching, (*prompt, 7)), branching)


def test_sequences_of_other_models_are_refused(model: Model) -> None:
    class Stranger:
        length = 0

        def pages_needed(self, length: int) -> int: ...  # type: ignore[empty-body]
        def truncate(self, length: int) -> None: ...
        def fork(self) -> Stranger: ...  # type: ignore[empty-body]
        def close(self) -> None: ...

    with pytest.raises(BackendError), model.forward([ForwardInput(Stranger(), (1,))]):
        pass


def _holds(model: Model, implementation: Implementation, kv: KV, tokens: Sequence[int], *, probe: bool = True) -> None:
    """A sequence equals one that has read `tokens` afresh: what it holds, and what the next token makes of it."""
    assert kv.length == len(tokens)
    assert same(implementation.contents(kv), implementation.contents(read(model, tokens)))
    if probe:
        with model.forward([ForwardInput(kv, (17,))]) as output:
            assert equal(output.logits(0)[-1], row(model, (*tokens, 17)), model)
