"""A model is found before it is loaded; what is kept of it goes by its file, its tokens, and how it runs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.assembly import models
from forerun.assembly.models import FoundModel, backend_for, find_model, notes
from forerun.backends.cpu import missing_core
from forerun.backends.reference import ReferenceModel
from forerun.backends.toy import ToyModel, random_logits
from forerun.config import Config
from forerun.errors import ModelError
from tests.unit.assembly.found import spelling, tiny, weights


def test_the_toy_has_no_file() -> None:
    toy = find_model("toy", Config())
    assert (toy.name, toy.template, toy.weights, toy.stamp, toy.types) == ("toy", None, None, None, {})
    assert isinstance(toy.model, ToyModel)
    assert isinstance(find_model("anything", Config(backend="toy")).model, ToyModel)


def test_a_name_that_means_nothing() -> None:
    with pytest.raises(ModelError, match="no-such-model"):
        find_model("no-such-model", Config())


def test_a_model_is_loaded_once_and_only_when_asked_for() -> None:
    found = tiny(loads=True)
    assert found.vocabulary
    assert found.types["F16"] > 0
    assert isinstance(found.model, ReferenceModel)
    assert found.model is found.model
    with pytest.raises(AssertionError, match="weights were loaded"):
        _ = tiny().model


def test_a_model_is_loaded_with_the_memory_that_it_was_given() -> None:
    given: list[int | None] = []

    def load(kv_memory: int | None) -> ToyModel:
        given.append(kv_memory)
        return ToyModel(4, 1, random_logits(4, 1, 1.0))

    found = FoundModel("name", tiny().tokenizer, None, load)
    found.kv_memory = 123
    assert found.model.info.vocab_size == 4
    assert given == [123]


def test_vocabularies_have_one_name_only_if_their_tokens_are_the_same() -> None:
    assert tiny("one").vocabulary == tiny("other").vocabulary
    assert tiny().vocabulary != tiny(tokenizer=spelling(range(255, -1, -1))).vocabulary


def test_what_was_kept_goes_by_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"one")
    os.utime(path, ns=(5, 5))
    found = FoundModel("name", tiny().tokenizer, None, tiny(loads=True)._load, weights(path))
    assert found.stamp == (path, 3, 5)
    config = Config(backend="reference")
    names = {found.fingerprint(config), found.fingerprint(replace(config, kv_dtype="fp32"))}
    os.utime(path, ns=(6, 6))
    changed = FoundModel("name", tiny().tokenizer, None, tiny(loads=True)._load, weights(path))
    names.add(changed.fingerprint(config))
    assert len(names) == 3
    assert changed.fingerprint(config) == changed.fingerprint(replace(config, threads=1))


@pytest.mark.parametrize("missing", [None, "the compiled core is missing"])
def test_auto_is_the_fastest_that_runs_here(missing: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.backends.cpu.missing_core", lambda: missing)
    assert backend_for("auto") == ("cpu" if missing is None else "reference")
    assert [backend_for(name) for name in ("cpu", "reference", "toy")] == ["cpu", "reference", "toy"]
    # A user who did not ask for the slow one hears why it runs.
    assert notes(Config(), "reference") == (missing or "",)
    assert notes(Config(backend="reference"), "reference") == ()


def test_more_threads_than_cores_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.backends.cores.usable_cores", lambda: 2)
    assert notes(Config(threads=2), "cpu") == ()
    assert notes(Config(threads=9), "cpu") == ("9 threads are more than there are cores to use here; 2 run.",)


@pytest.mark.skipif(missing_core() is not None, reason="the compiled core was not built")
def test_the_options_of_the_backend_reach_it() -> None:
    config = Config(backend="cpu", kv_dtype="fp32", context=64, threads=1, quantize="w8")
    model = models.load_model(weights(), tiny().tokenizer, "name", config, 1 << 20)
    info = model.info
    assert (info.name, info.backend, info.context, info.usable_vocab) == ("name", "cpu", 64, 257)
    page = 3 * 2 * 2 * 16 * 4 * 64  # layers, keys and values, heads, width, fp32, tokens
    assert 0 < model.room().total <= (1 << 20) // page
    model.close()
