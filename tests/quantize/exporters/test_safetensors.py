"""Test bundles as Hugging Face folders: they are read as the same bundle."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.quantize.exporters.safetensors import export_safetensors
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.schemes import TernaryScheme
from tests.quantize.exporters.gguf.test_export import assert_same_codes, write


def again(folder: Path, method: str) -> Bundle:
    quantize(open_checkpoint(folder), folder.with_name("again"), QuantizeOptions(method=method), vocab_limit=40)
    return Bundle.open(folder.with_name("again"))


@pytest.mark.parametrize("group_size", [0, 128])
@pytest.mark.parametrize("changes", [{}, {"model_type": "bitnet"}])
def test_trits_survive_a_round_trip(tmp_path: Path, group_size: int, changes: Mapping[str, Any]) -> None:
    bundle = write(tmp_path / "a", TernaryScheme(group_size=group_size), changes)
    assert export_safetensors(bundle, tmp_path / "m")["ternary"] == 14
    config = json.loads((tmp_path / "m" / "config.json").read_text("utf-8"))
    assert config["quantization_config"]["quant_method"] == "bitnet"
    actual = again(tmp_path / "m", "ternary")
    assert_same_codes(bundle, actual)
    assert actual.tokens == bundle.tokens
    assert actual.chat_template == bundle.chat_template


@pytest.mark.parametrize("ternary", [None, TernaryScheme(planes=2, group_size=64)])
def test_other_bundles_are_written_as_float(tmp_path: Path, ternary: TernaryScheme | None) -> None:
    bundle = write(tmp_path / "a", ternary)
    assert set(export_safetensors(bundle, tmp_path / "m")) == {"float"}
    checkpoint = open_checkpoint(tmp_path / "m")
    for name in bundle.tensors:
        np.testing.assert_array_equal(checkpoint.load(name), bundle.weight(name).dense())
    if ternary is None:
        assert_same_codes(bundle, again(tmp_path / "m", "int8"))


@pytest.mark.parametrize("group_size", [0, 128])
def test_neighbours_become_halves(tmp_path: Path, group_size: int) -> None:
    bundle = write(tmp_path / "a", TernaryScheme(group_size=group_size), {"rope_interleaved": True})
    export_safetensors(bundle, tmp_path / "m")
    checkpoint = open_checkpoint(tmp_path / "m")
    assert "rope_interleaved" not in checkpoint.config
    name = "model.layers.1.self_attn.k_proj.weight"
    halves = checkpoint.load(name).reshape(2, 2, 32, 256)
    np.testing.assert_array_equal(halves.swapaxes(1, 2).reshape(128, 256), bundle.weight(name).dense())


def test_norms_with_an_offset_are_written_without_it(tmp_path: Path) -> None:
    changes = {"model_type": "gemma", "hidden_act": None, "tie_word_embeddings": True, "rms_norm_offset": 0}
    bundle = write(tmp_path / "a", None, changes)
    export_safetensors(bundle, tmp_path / "m")
    checkpoint = open_checkpoint(tmp_path / "m")
    assert "rms_norm_offset" not in checkpoint.config
    values = checkpoint.load("model.norm.weight")
    np.testing.assert_array_equal(values, bundle.weight("model.norm.weight").dense() - np.float32(1))


def test_another_folder_is_left_alone(tmp_path: Path) -> None:
    bundle = write(tmp_path / "a", None)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.txt").touch()
    with pytest.raises(UsageError, match=r"cannot write"):
        export_safetensors(bundle, tmp_path / "m")
    assert [file.name for file in (tmp_path / "m").iterdir()] == ["thesis.txt"]


@pytest.mark.thorough
@pytest.mark.parametrize("ternary", [None, TernaryScheme()])
def test_peak_memory_is_one_tensor(tmp_path: Path, ternary: TernaryScheme | None) -> None:
    bundle = write(tmp_path / "a", ternary, {"num_hidden_layers": 12})
    shapes = [tensor.shape for tensor in bundle.tensors.values() if len(tensor.shape) == 2]
    largest, whole = (4 * count(rows * columns for rows, columns in shapes) for count in (max, sum))
    tracemalloc.start()
    export_safetensors(bundle, tmp_path / "m")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * largest + (1 << 20) < whole / 2
