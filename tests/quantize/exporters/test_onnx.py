"""Bundles as portable ONNX: what the graph computes, and what onnxruntime-genai finds beside it.

tests/test_speculation_peers.py runs the graph pass by pass on caches; here are the schemes that only an export has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.quantize.exporters.onnx import export_onnx
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatWeight, TernaryScheme
from tests.quantize.exporters.test_gguf import write

SMALL: Mapping[str, Any] = {"num_hidden_layers": 1, "intermediate_size": 256}


def computed(folder: Path, bundle: Bundle, ids: NDArray[np.int32]) -> NDArray[np.float32]:
    session = ort.InferenceSession(str(folder / "model.onnx"))
    feeds: dict[str, Any] = {
        "input_ids": ids[None].astype(np.int64),
        "attention_mask": np.ones((1, len(ids)), np.int64),
    }
    empty = np.zeros((1, bundle.config["num_key_value_heads"], 0, bundle.config["head_dim"]), np.float32)
    for layer in range(bundle.config["num_hidden_layers"]):
        feeds |= {f"past_key_values.{layer}.{part}": empty for part in ("key", "value")}
    (logits,) = session.run(["logits"], feeds)
    found: NDArray[np.float32] = logits[0]
    return found


@pytest.mark.parametrize("changes", [{}, {"model_type": "qwen2"}, {"rope_interleaved": True}])
@pytest.mark.parametrize("ternary", [None, TernaryScheme(), TernaryScheme(planes=2, group_size=64)])
def test_the_graph_computes_the_model(
    tmp_path: Path, ternary: TernaryScheme | None, changes: Mapping[str, Any]
) -> None:
    """But for its activations, in int8 by blocks."""
    bundle = write(tmp_path / "a", ternary, {**SMALL, **changes})
    export_onnx(bundle, tmp_path / "m")
    ids = np.random.default_rng(1).integers(0, 40, 20).astype(np.int32)
    model = ReferenceModel(build_graph(bundle.config), lambda name: FloatWeight(values=bundle.weight(name).dense()))
    wanted = model.forward(ids, model.new_cache())[0]
    found = computed(tmp_path / "m", bundle, ids)
    cosines = (found * wanted).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)
    assert cosines.min() > 0.99
    assert np.median(cosines) > 0.998


def test_what_genai_finds(tmp_path: Path) -> None:
    bundle = write(tmp_path / "a", TernaryScheme(), SMALL)
    counts = export_onnx(bundle, tmp_path / "m")
    assert counts == {"ternary": 7, "float": 4, "int8": 1}
    config = json.loads((tmp_path / "m" / "genai_config.json").read_text("utf-8"))
    assert config["speculative"] == {"ngram_size": 3}
    assert config["model"]["context_length"] == 64
    assert config["model"]["eos_token_id"] == [2, 3]
    assert config["model"]["decoder"]["filename"] == "model.onnx"
    assert (tmp_path / "m" / "tokenizer.json").read_bytes() == bundle.tokenizer_file.read_bytes()
    settings = json.loads((tmp_path / "m" / "tokenizer_config.json").read_text("utf-8"))
    assert settings["chat_template"] == "{{ messages }}"
    assert settings["bos_token"] == "b"


def test_with_a_draft(tmp_path: Path) -> None:
    bundle, draft = write(tmp_path / "a", TernaryScheme(), SMALL), write(tmp_path / "d", None, SMALL)
    export_onnx(bundle, tmp_path / "m", draft=draft)
    config = json.loads((tmp_path / "m" / "genai_config.json").read_text("utf-8"))
    assert config["speculative"] == {"max_draft_tokens": 4}
    assert config["model"]["draft"]["filename"] == "draft/model.onnx"
    ids = np.arange(5, dtype=np.int32)
    assert computed(tmp_path / "m" / "draft", draft, ids).shape == (5, 40)


def test_a_draft_with_another_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write(tmp_path / "a", None, SMALL)
    from tests.quantize.exporters import test_gguf

    other = test_gguf.tokenizer("gpt-2")
    monkeypatch.setattr(test_gguf, "tokenizer", lambda: other)
    draft = write(tmp_path / "d", None, SMALL)
    with pytest.raises(UsageError, match=r"has another tokenizer than"):
        export_onnx(bundle, tmp_path / "m", draft=draft)
    assert not (tmp_path / "m").exists()


def test_families_that_are_not_written(tmp_path: Path) -> None:
    bundle = write(tmp_path / "a", TernaryScheme(), {"model_type": "qwen3", **SMALL})
    with pytest.raises(
        UnsupportedError, match=r"qwen3 is not written as ONNX for others; known: llama, qwen2, mistral"
    ):
        export_onnx(bundle, tmp_path / "m")
    assert not (tmp_path / "m").exists()
