"""Tokenizers of Hugging Face folders: tokenizer.json decides the ids, the files beside it the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from forerun.errors import ModelFileError, PromptError, UnsupportedModelError
from forerun.tokenizers.loading import load_tokenizer
from forerun.tokenizers.tokenizer import byte_alphabet

SPECIAL = ["<|bos|>", "<|im_start|>", "<|im_end|>"]
TEXTS = ["héllo wörld", " a\n\n b ", "文字 😀", "<tool>x</tool> <|im_end|>", ""]


def byte_level() -> tokenizers.Tokenizer:
    vocabulary = {char: i for i, char in enumerate(sorted(byte_alphabet()))} | {"he": 256, "llo": 257, "lo": 258}
    engine = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("l", "o"), ("l", "lo"), ("h", "e")]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    engine.add_tokens([AddedToken("<tool>", normalized=False)])
    return engine


def pieces() -> tokenizers.Tokenizer:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581", "h", "i", "\u2581h", "\u2581hi"]
    merges = [("\u2581", "h"), ("\u2581h", "i")]
    model = models.BPE(
        {t: i for i, t in enumerate(tokens)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    engine = tokenizers.Tokenizer(model)
    engine.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    engine.decoder = decoders.Sequence(steps)
    engine.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens[:3]])
    engine.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return engine


def write(folder: Path, engine: tokenizers.Tokenizer, **files: Any) -> Path:
    folder.mkdir(exist_ok=True)
    engine.save(str(folder / "tokenizer.json"))
    for name, value in ({"config": {"vocab_size": 300}} | files).items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_ids_and_text_are_those_of_the_engine(tmp_path: Path) -> None:
    for name, engine in (("bytes", byte_level()), ("pieces", pieces())):
        ours = load_tokenizer(write(tmp_path / name, engine))
        for text in TEXTS:
            ids = engine.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, special=True, add_bos=False) == ids
            assert ours.decode(ids) == engine.decode(ids)
            assert ours.decode(ids, skip_special=False) == engine.decode(ids, skip_special_tokens=False)
            plain = ours.encode(text, add_bos=False)
            assert not ours.control_ids & set(plain)
            assert ours.decode(plain) == text


def test_control_tokens_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    for name, engine, token in (("bytes", byte_level(), "<|im_start|>"), ("pieces", pieces(), "<s>")):
        ours = load_tokenizer(write(tmp_path / name, engine))
        inside = f"a{token}b{token}"
        control = engine.token_to_id(token)
        assert control is not None
        assert ours.encode(inside, special=True, add_bos=False).count(control) == 2
        assert control not in ours.encode(inside, add_bos=False)
        # Tokens that are no control tokens are read wherever they stand, as the library does.
        added = engine.token_to_id("<tool>")
        if added is not None:
            assert ours.encode("x<tool>y").count(added) == 1


@pytest.mark.parametrize("text", ["\n\n", " ", "\t", "  \n "])
def test_a_text_may_be_nothing_but_white_space(tmp_path: Path, text: str) -> None:
    for name, engine in (("bytes", byte_level()), ("pieces", pieces())):
        ours = load_tokenizer(write(tmp_path / name, engine))
        assert ours.decode(ours.encode(text, add_bos=False)) == text


def test_half_characters_decode_as_the_engine_decodes_them(tmp_path: Path) -> None:
    engine = byte_level()
    ours = load_tokenizer(write(tmp_path / "m", engine))
    ids = engine.encode("😀文é", add_special_tokens=False).ids
    for cut in range(len(ids)):
        assert ours.decode(ids[cut:]) == engine.decode(ids[cut:])
        assert ours.decode(ids[:cut]) == engine.decode(ids[:cut])


def test_a_space_in_front_belongs_to_encoding(tmp_path: Path) -> None:
    ours = load_tokenizer(write(tmp_path / "m", pieces()))
    ids = ours.encode("hi", add_bos=False)
    assert [ours.id_to_token(i) for i in ids] == ["\u2581hi"]
    assert ours.strips_space
    assert ours.decode(ids) == "hi"
    assert ours.decode(ids, continues=True) == " hi"
    assert ours.token_bytes(ids[0]) == b" hi"


def test_end_tokens_come_from_every_file(tmp_path: Path) -> None:
    settings = {"eos_token": {"content": "<|bos|>"}, "bos_token": "<|bos|>"}
    end = byte_level().token_to_id("<|im_end|>")
    bos, start = (byte_level().token_to_id(token) for token in ("<|bos|>", "<|im_start|>"))
    ours = load_tokenizer(
        write(tmp_path / "m", byte_level(), tokenizer_config=settings, generation_config={"eos_token_id": [start, 5]})
    )
    assert ours.eos_ids == {bos, start, end, 5}
    assert (ours.eos_id, ours.bos_id) == (bos, bos)
    config = {"vocab_size": 300, "eos_token_id": 7, "text_config": {"eos_token_id": [8, 10**6, "x"]}}
    assert load_tokenizer(write(tmp_path / "n", byte_level(), config=config)).eos_ids == {end, 7, 8}


def test_bos_is_added_as_the_files_say(tmp_path: Path) -> None:
    named = {"bos_token": "<s>"}
    assert load_tokenizer(write(tmp_path / "a", pieces(), tokenizer_config=named)).add_bos
    stated = named | {"add_bos_token": False}
    assert not load_tokenizer(write(tmp_path / "b", pieces(), tokenizer_config=stated)).add_bos
    assert not load_tokenizer(write(tmp_path / "c", pieces())).add_bos
    without = {"bos_token": "<|bos|>"}
    assert not load_tokenizer(write(tmp_path / "d", byte_level(), tokenizer_config=without)).add_bos


def test_templates(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", byte_level(), tokenizer_config={"chat_template": "one"})
    assert load_tokenizer(folder).chat_template == "one"
    (folder / "chat_template.jinja").write_text("two")
    assert load_tokenizer(folder).chat_template == "two"
    several = [{"name": "tool_use", "template": "three"}, {"name": "default", "template": "four"}]
    folder = write(tmp_path / "b", byte_level(), tokenizer_config={"chat_template": several})
    assert load_tokenizer(folder).chat_template == "four"
    assert load_tokenizer(write(tmp_path / "c", byte_level())).chat_template is None
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(ModelFileError, match=r"chat_template\.jinja"):
        load_tokenizer(folder)


def test_tokens_past_the_table_of_the_model_are_refused(tmp_path: Path) -> None:
    size = byte_level().get_vocab_size()
    ours = load_tokenizer(write(tmp_path / "m", byte_level(), config={"text_config": {"vocab_size": size - 1}}))
    assert ours.vocab_size == size - 1
    with pytest.raises(PromptError, match="<tool>, which the model has no row for"):
        ours.encode("<tool>")
    assert ours.encode("tool")


def test_damaged_folders(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", byte_level())
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: is missing"):
        load_tokenizer(folder)
    word = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(UnsupportedModelError, match="decoder of type none"):
        load_tokenizer(write(tmp_path / "w", word))
    word.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        load_tokenizer(write(tmp_path / "w", word))


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    engine = byte_level()
    engine.enable_truncation(2)
    engine.enable_padding(length=9)
    assert load_tokenizer(write(tmp_path / "m", engine)).encode("abc") == byte_level().encode("abc").ids
