"""A GGUF model over several files is one model, whichever of them is given; what is wrong with one of them is said of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.errors import ModelFileError
from forerun.weights import files_of, model_file, open_weights
from forerun.weights.shards import shards_of

Make = Callable[..., Any]


@pytest.fixture
def parts(make_tiny: Make, tmp_path: Path) -> list[Path]:
    """A model in several files."""
    make_tiny("llama").write_gguf(tmp_path / "m.gguf", split=6)
    found = sorted(tmp_path.glob("*.gguf"))
    assert [path.name for path in found] == [f"m-{n:05}-of-00004.gguf" for n in (1, 2, 3, 4)]
    return found


def test_names(tmp_path: Path) -> None:
    assert shards_of(Path("m.gguf")) == [Path("m.gguf")]
    assert shards_of(Path("a/m-00002-of-00003.gguf")) == [Path(f"a/m-0000{n}-of-00003.gguf") for n in (1, 2, 3)]
    assert shards_of(Path("m-00001-of-00000.gguf")) == [Path("m-00001-of-00000.gguf")]
    assert shards_of(Path("m-1-of-3.gguf")) == [Path("m-1-of-3.gguf")]
    (tmp_path / "m-00002-of-00003.gguf").touch()
    assert files_of(tmp_path / "m-00001-of-00003.gguf") == [tmp_path / "m-00002-of-00003.gguf"]


@pytest.mark.parametrize("given", [0, 1, 3])
def test_all_parts_are_one_model(parts: list[Path], make_tiny: Make, tmp_path: Path, given: int) -> None:
    whole = open_weights(make_tiny("llama").write_gguf(tmp_path / "whole.gguf"))
    split = open_weights(parts[given])
    assert split.path == parts[0]
    assert split.spec == whole.spec
    assert list(split.tensors) == list(whole.tensors)
    for name, tensor in whole.tensors.items():
        np.testing.assert_array_equal(split.tensors[name].dequantize(), tensor.dequantize(), err_msg=name)
    assert files_of(split.path) == parts


def test_a_folder_with_the_parts_of_one_model_means_that_model(parts: list[Path]) -> None:
    assert model_file(parts[0].parent) == parts[0]
    assert model_file(parts[2]) == parts[0]
    (parts[0].parent / "other.gguf").touch()
    with pytest.raises(ModelFileError, match=r"holds 2 \.gguf files"):
        model_file(parts[0].parent)


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_missing_part_is_named(parts: list[Path], missing: int) -> None:
    parts[missing].unlink()
    for given in (path for path in parts if path.exists()):
        with pytest.raises(ModelFileError, match=rf"m-0000{missing + 1}-of-00004\.gguf: is missing, one of 4 parts"):
            open_weights(given)


def test_parts_under_other_names(parts: list[Path]) -> None:
    for name in ("m.gguf", "m-00001-of-00003.gguf"):
        with pytest.raises(ModelFileError, match=r"one of 4 parts .* NAME-00001-of-00004\.gguf"):
            open_weights(shutil.copy(parts[0], parts[0].with_name(name)))


def test_a_part_in_the_place_of_another(parts: list[Path]) -> None:
    shutil.copy(parts[1], parts[2])
    with pytest.raises(ModelFileError, match=r"m-00003-of-00004\.gguf: is not part 3 of 4"):
        open_weights(parts[0])


def test_a_part_of_another_model(parts: list[Path], make_tiny: Make, tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    make_tiny("llama", num_hidden_layers=3).write_gguf(tmp_path / "o" / "m.gguf", split=8)
    shutil.copy(tmp_path / "o" / parts[1].name, parts[1])
    with pytest.raises(ModelFileError, match="4 parts do not belong together"):
        open_weights(parts[0])


def test_a_damaged_part_is_named(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[1].read_bytes()[:-64])
    with pytest.raises(ModelFileError, match=r"m-00002-of-00004\.gguf: tensor .* truncated"):
        open_weights(parts[0])


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n"


def test_pointers_of_git_lfs_are_said_to_be_that(make_tiny: Make, tmp_path: Path) -> None:
    from forerun.models import resolve
    from forerun.tokenizers.loading import load_tokenizer

    pointer = tmp_path / "m.gguf"
    pointer.write_bytes(POINTER)
    folder = make_tiny("llama").write_folder(tmp_path / "f")
    asked: list[tuple[Callable[[Path], object], Path, Path]] = [
        (open_weights, pointer, pointer),
        (resolve, pointer, pointer),
        (open_weights, folder, folder / "model.safetensors"),
        (load_tokenizer, folder, folder / "tokenizer.json"),
        (open_weights, folder, folder / "config.json"),
    ]
    for ask, path, file in asked:
        file.write_bytes(POINTER)
        with pytest.raises(ModelFileError, match=r"is a Git LFS pointer, .* run `git lfs pull`") as caught:
            ask(path)
        assert str(file) in str(caught.value)
