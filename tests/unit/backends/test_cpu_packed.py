"""The cache of repacked weights: found again, never trusted blindly, never in the way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from forerun.backends.cpu import CpuModel, missing_core
from forerun.backends.cpu.options import CpuOptions
from forerun.core.model import ForwardInput
from forerun.models import storage
from forerun.weights import Weights
from forerun.weights.derive import first_layers, requantized, with_head
from tests.unit.backends.tiny import Floats, spec_of, text
from tests.unit.backends.tiny_cpu import WIDE, encoded

pytestmark = pytest.mark.skipif(missing_core() is not None, reason="the compiled core was not built")


class Home:
    """A model file (its content only stands for the tensors given beside it) and a cache folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.source = folder / "model.gguf"
        self.source.write_bytes(b"GGUF" * 1000)
        self.home = folder / "home"
        self.spec = spec_of("qwen3", **WIDE)
        self.tensors = encoded(self.spec, "mixed")

    def load(self, **options: object) -> CpuModel:
        chosen = CpuOptions(threads=1, home=self.home, **options)  # type: ignore[arg-type]
        return CpuModel(self.spec, self.tensors, options=chosen, source=self.source)

    def logits(self, **options: object) -> Floats:
        model = self.load(**options)
        with model.forward([ForwardInput(model.open(), text(20))]) as output:
            return output.logits(0).copy()

    def forget(self) -> None:
        """Takes the tensors away: what is loaded now comes from the cache, or is zero."""
        from dataclasses import replace

        self.tensors = {
            name: replace(tensor, stored=np.zeros_like(tensor.stored)) if len(tensor.shape) == 2 else tensor
            for name, tensor in self.tensors.items()
        }

    def files(self, suffix: str = ".packed") -> list[Path]:
        return sorted(path for path in self.home.rglob("*") if path.suffix == suffix)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_the_second_start_reads_the_cache(home: Home) -> None:
    wanted = home.logits(cache=False)
    assert home.files() == []
    assert np.array_equal(home.logits(), wanted)
    assert [path.stem[:6] for path in home.files()] == ["model-"]
    home.forget()
    assert np.array_equal(home.logits(), wanted)
    assert not np.array_equal(home.logits(cache=False), wanted)


def test_nothing_but_the_file_is_left(home: Home) -> None:
    home.load()
    assert [path.suffix for path in home.home.rglob("*") if path.is_file()] == [".packed"]


def test_another_state_of_the_source_is_another_file(home: Home) -> None:
    home.load()
    (first,) = home.files()
    os.utime(home.source, ns=(1, 1))
    home.load()
    (second,) = home.files()
    home.source.write_bytes(b"GGUF" * 999 + b"gguf")
    os.utime(home.source, ns=(1, 1))
    home.load()
    (third,) = home.files()
    assert len({first, second, third}) == 3


def test_ways_of_quantizing_do_not_mix(home: Home) -> None:
    rows = {quantize: home.logits(quantize=quantize) for quantize in (None, "w8", "w4")}
    assert len(home.files()) == 3
    home.forget()
    for quantize, wanted in rows.items():
        assert np.array_equal(home.logits(quantize=quantize), wanted)
    assert len({row.tobytes() for row in rows.values()}) == 3


@pytest.mark.parametrize("at", [0, 9, 20, 60, 4096, 5000, -9000])
def test_a_damaged_file_is_rebuilt(home: Home, at: int, caplog: pytest.LogCaptureFixture) -> None:
    wanted = home.logits()
    (path,) = home.files()
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x10
    path.write_bytes(raw)
    assert np.array_equal(home.logits(), wanted)
    assert "is damaged" in caplog.text
    assert [path for path in home.home.rglob("*") if path.is_file()] == [path]
    home.forget()
    assert np.array_equal(home.logits(), wanted)


@pytest.mark.parametrize("size", [0, 5, 23, 24, 400, 4096, 30_000, -1])
def test_a_truncated_file_is_rebuilt(home: Home, size: int) -> None:
    wanted = home.logits()
    (path,) = home.files()
    path.write_bytes(path.read_bytes()[:size] if size >= 0 else path.read_bytes()[: -4096 - 1])
    assert np.array_equal(home.logits(), wanted)
    home.forget()
    assert np.array_equal(home.logits(), wanted)


def test_a_file_that_lacks_a_matrix_is_not_used(home: Home) -> None:
    wanted = home.logits()
    gate = home.tensors.pop("layers.1.gate")
    (path,) = home.files()
    path.unlink()
    with pytest.raises(Exception, match="gate"):
        home.load()
    home.tensors["layers.1.gate"] = gate
    with pytest.warns(RuntimeWarning, match="no cache"):
        assert np.array_equal(home.logits(), wanted)


def test_a_full_disk_costs_the_cache_and_nothing_else(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = home.logits(cache=False)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("forerun.backends.cpu.packed_file._write", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert np.array_equal(home.logits(), wanted)
    assert [path for path in home.home.rglob("*") if path.is_file()] == []


def test_a_folder_that_cannot_be_written(home: Home) -> None:
    home.home.write_text("a file where the folder should be")
    with pytest.warns(RuntimeWarning, match="no cache"):
        home.load()


def test_what_interrupted_writers_left_is_swept(home: Home) -> None:
    home.load()
    (path,) = home.files()
    path.unlink()
    old, new = (path.with_name(f"{path.name}.{pid}.partial") for pid in (1, 2))
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (1, 1))
    home.load()
    assert (old.exists(), new.exists()) == (False, True)


def test_what_was_made_of_models_that_are_gone_is_swept(home: Home, tmp_path: Path) -> None:
    home.load()
    (first,) = home.files()
    other = Home(tmp_path / "other")
    other.home = home.home
    other.load()
    assert first in home.files()
    home.source.unlink()
    other.load(quantize="w8")
    assert first not in home.files()
    assert len(home.files()) == 2


def test_beyond_the_limit_what_was_used_longest_ago_goes(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {}
    for quantize in (None, "w8"):
        known = set(home.files())
        home.load(quantize=quantize)
        (made[quantize],) = set(home.files()) - known
    for path in made.values():
        os.utime(path, (1000, 1000))
    home.load()  # and so it is the one used last
    assert made[None].stat().st_mtime > 1000
    os.utime(made[None], (2000, 2000))
    monkeypatch.setattr(storage, "PACKED_LIMIT", sum(path.stat().st_size for path in made.values()))
    home.load(quantize="w4")
    assert made[None] in home.files()
    assert made["w8"] not in home.files()
    os.utime(made[None])
    monkeypatch.setattr(storage, "PACKED_LIMIT", 1)
    home.load(quantize="w8")
    assert len(home.files()) == 3  # all of them were used within the hour


def test_a_part_of_a_split_model_that_changes_is_another_state(home: Home) -> None:
    parts = [home.source.with_name(f"m-0000{n}-of-00002.gguf") for n in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF" * 1000)
    home.source = parts[0]
    home.load()
    (first,) = home.files()
    home.load()
    assert home.files() == [first]
    os.utime(parts[1], ns=(1, 1))
    home.load()
    assert first not in home.files()


def test_links_of_the_hub_lead_to_all_parts(home: Home, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    for n in (1, 2):
        (tmp_path / "blobs" / f"b{n}").write_bytes(b"GGUF" * 1000)
        (tmp_path / f"m-0000{n}-of-00002.gguf").symlink_to(tmp_path / "blobs" / f"b{n}")
    home.source = tmp_path / "m-00001-of-00002.gguf"
    home.load()
    (first,) = home.files()
    os.utime(tmp_path / "blobs" / "b2", ns=(1, 1))
    home.load()
    assert first not in home.files()


def test_the_users_home_is_the_default(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_HOME", str(home.home))
    CpuModel(home.spec, home.tensors, source=home.source)
    assert len(home.files()) == 1


@pytest.fixture
def whole(home: Home) -> Weights:
    return Weights(home.source, "gguf", home.spec, home.tensors, {})


def rows(home: Home, model: Weights) -> Floats:
    loaded = CpuModel.from_weights(model, options=CpuOptions(threads=1, home=home.home))
    with loaded.forward([ForwardInput(loaded.open(), text(20))]) as output:
        return output.logits(0).copy()


def test_variants_share_what_they_have_in_common(home: Home, whole: Weights) -> None:
    wanted = rows(home, whole)
    (file,) = home.files()
    before = file.read_bytes()
    derived = {
        "exit": first_layers(whole, 2),
        "w4": requantized(whole, "w4"),
        "head": with_head(whole, [3, 5, 8]),
        "both": with_head(requantized(whole, "w4"), [3, 5, 8]),
        "other head": with_head(whole, [3, 5, 9]),
    }
    found, sizes = {}, {}
    for name, model in derived.items():
        known = set(home.files())
        found[name] = rows(home, model)
        new = set(home.files()) - known
        sizes[name] = sum(path.stat().st_size for path in new)
        assert len(new) == (name != "exit")
    assert sizes["head"] < sizes["w4"] < len(before)
    assert file.read_bytes() == before
    home.forget()
    gone = Weights(home.source, "gguf", home.spec, home.tensors, {})
    again = {
        "exit": first_layers(gone, 2),
        "w4": requantized(gone, "w4"),
        "head": with_head(gone, [3, 5, 8]),
        "both": with_head(requantized(gone, "w4"), [3, 5, 8]),
        "other head": with_head(gone, [3, 5, 9]),
    }
    for name, model in again.items():
        assert np.array_equal(rows(home, model), found[name])
    assert np.array_equal(rows(home, gone), wanted)
    assert len({row.tobytes() for row in found.values()}) == len(found)


def test_a_variant_alone_has_all_it_needs(home: Home, whole: Weights) -> None:
    model = with_head(first_layers(whole, 2), [3, 5, 8])
    first = rows(home, model)
    assert len(home.files()) == 1
    home.forget()
    gone = Weights(home.source, "gguf", home.spec, home.tensors, {})
    assert np.array_equal(rows(home, with_head(first_layers(gone, 2), [3, 5, 8])), first)
    assert not np.array_equal(rows(home, gone)[:, [3, 5, 8]], first)
    assert len(home.files()) == 2
