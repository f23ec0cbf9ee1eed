"""What the tokenizers library throws is an error of ours, and what hostile files bring along is bounded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from forerun.confined.worker import Limits
from forerun.errors import ForerunError, ModelFileError, PromptError, UnsupportedModelError
from forerun.tokenizers.engine import ConfinedEngine, LocalEngine, translated
from forerun.tokenizers.loading import load_tokenizer
from forerun.tokenizers.tokenizer import byte_alphabet


def engine(regex: str | None = None) -> Tokenizer:
    made = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(sorted(byte_alphabet()))}, merges=[]))
    made.decoder = decoders.ByteLevel()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if regex is not None:
        split = pre_tokenizers.Split(Regex(regex), behavior="isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([split, made.pre_tokenizer])
    made.add_special_tokens(["<|end|>"])
    return made


def folder(path: Path, made: Tokenizer, **parts: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text("{}")
    (path / "tokenizer.json").write_text(json.dumps(json.loads(made.to_str()) | parts))
    return path


def replaced(old: str, new: str, times: int) -> dict[str, Any]:
    part = {"type": "Replace", "pattern": {"String": old}, "content": new}
    return {"type": "Sequence", "normalizers": [part] * times}


def test_a_plain_tokenizer_runs_here_and_another_in_its_own_process(tmp_path: Path) -> None:
    plain = load_tokenizer(folder(tmp_path / "a", engine(r"\s+")))
    other = load_tokenizer(folder(tmp_path / "b", engine(r"[a-z]+")))
    assert isinstance(plain._engine, LocalEngine)
    assert isinstance(other._engine, ConfinedEngine)
    assert plain.tokens == other.tokens
    for text in ("ab cd <|end|>", "é 😀\n\n", "", "\n\n", "x" * 100_000):
        for special in (False, True):
            assert plain.encode(text, special=special) == other.encode(text, special=special)
    assert plain.decode(other.encode("naïve <|end|>")) == "naïve <|end|>"


def test_panics_are_errors_of_ours(capfd: pytest.CaptureFixture[str]) -> None:
    local = LocalEngine(engine("(a+)+$"))
    with pytest.raises(PromptError, match=r"cannot take this text apart.*retry-limit-in-match"):
        local.encode("a" * 40 + "!", False)
    assert local.encode("b", False)
    with pytest.raises(KeyboardInterrupt), translated(PromptError):
        raise KeyboardInterrupt
    with pytest.raises(ModelFileError), translated(PromptError):
        raise ModelFileError("as it is")


def test_a_confined_panic_is_an_error_and_nothing_on_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hostile = load_tokenizer(folder(tmp_path / "m", engine("(a+)+$")))
    with pytest.raises(PromptError, match="cannot take this text apart"):
        hostile.encode("a" * 40 + "!")
    assert hostile.encode("b") == engine().encode("b").ids
    assert capfd.readouterr() == ("", "")


def test_an_expression_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = load_tokenizer(folder(tmp_path / "m", engine("(x+x+)+y")))
    short = Limits(0.3, 1 << 30, 1 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(Limits, "of", lambda _: short)
        with pytest.raises(ModelFileError, match=r"taking this text apart takes more than 0\.3 s"):
            hostile.encode(("x" * 18 + " ") * 5000)
    assert hostile.encode("x") == engine().encode("x").ids


@pytest.mark.skipif(sys.platform != "linux", reason="no other system limits the memory of a process")
def test_a_text_that_is_made_to_grow_is_not_kept(tmp_path: Path) -> None:
    hostile = load_tokenizer(folder(tmp_path / "m", engine(), normalizer=replaced("a", "aa", 40)))
    with pytest.raises(ModelFileError, match="taking this text apart takes more than"):
        hostile.encode("aaaa")
    assert hostile.encode("b") == engine().encode("b").ids


@pytest.mark.skipif(sys.platform != "linux", reason="no other system limits the memory of a process")
def test_a_vocabulary_that_is_made_to_grow_is_refused_where_it_is_loaded(tmp_path: Path) -> None:
    """Added tokens are normalized when the file is read."""
    made = json.loads(engine().to_str())
    added = made["added_tokens"][0] | {"content": "aaaa", "id": 300, "normalized": True, "special": False}
    path = folder(
        tmp_path / "m", engine(), normalizer=replaced("a", "aa", 40), added_tokens=[*made["added_tokens"], added]
    )
    with pytest.raises(ModelFileError, match="loading it takes more than"):
        load_tokenizer(path)


def test_an_expression_that_is_not_valid_is_refused_where_it_is_loaded(tmp_path: Path) -> None:
    bad = {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated", "invert": False}
    with pytest.raises(ModelFileError, match=r"tokenizer.json: cannot be read .*parenthesis"):
        load_tokenizer(folder(tmp_path / "m", engine(), pre_tokenizer=bad))
    decoder = {"type": "Replace", "pattern": {"Regex": "(a+)+"}, "content": " "}
    with pytest.raises(UnsupportedModelError, match="decoder has a regular expression that is not known"):
        load_tokenizer(folder(tmp_path / "n", engine("[a-z]+"), decoder=decoder))


def test_what_a_file_says_twice_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", engine()) / "tokenizer.json"
    hostile = engine("(a+)+$").to_str()
    path.write_text(
        path.read_text()[:-1] + ', "pre_tokenizer": ' + json.dumps(json.loads(hostile)["pre_tokenizer"]) + "}"
    )
    with pytest.raises(ModelFileError, match="damaged"):
        load_tokenizer(path.parent)


def test_padding_and_post_processing_of_a_file_are_not_for_us(tmp_path: Path) -> None:
    made = engine()
    made.enable_padding(length=50)
    made.enable_truncation(3)
    made.post_processor = processors.TemplateProcessing("$A $A $A", special_tokens=[])
    ours = load_tokenizer(folder(tmp_path / "m", made))
    assert ours.encode("abcd") == engine().encode("abcd").ids
    made.normalizer = normalizers.Replace(Regex("[q]"), "q")
    confined = load_tokenizer(folder(tmp_path / "n", made))
    assert isinstance(confined._engine, ConfinedEngine)
    assert confined.encode("abcd") == engine().encode("abcd").ids


def test_what_the_model_has_no_row_for_is_named(tmp_path: Path) -> None:
    for name, regex in (("a", None), ("b", "[a-z]+")):
        path = folder(tmp_path / name, engine(regex))
        (path / "config.json").write_text(json.dumps({"vocab_size": 256}))
        with pytest.raises(PromptError, match=r"the text holds <\|end\|>, which the model has no row for"):
            load_tokenizer(path).encode("<|end|>", special=True)


def test_long_runs_are_read(tmp_path: Path) -> None:
    ours = load_tokenizer(folder(tmp_path / "m", engine(r"\s*[\r\n]+|\s+(?!\S)|\s+")))
    assert isinstance(ours._engine, LocalEngine)
    for text in (" " * 300_000, "\n" * 300_000, "a" * 300_000):
        assert len(ours.encode(text)) == 300_000


def test_errors_are_of_our_tree() -> None:
    with pytest.raises(ForerunError, match=r"^what$"), translated(ModelFileError):
        raise Exception("what")
