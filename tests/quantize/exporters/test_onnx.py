"""Test bundles as portable ONNX: what the graph computes, and what onnxruntime-genai needs next to it.

tests/benchmarks/test_speculation_peers.py runs the graph pass by pass on caches; this module has the schemes that only
an export has.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.host.ort import onnxruntime as ort
from edgedec.host.paths import cache_folder
from edgedec.quantize.exporters.onnx import export_onnx
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatWeight, TernaryScheme
from tests.quantize.exporters.gguf.test_export import write
from tests.quantize.exporters.gguf.test_families import FAMILIES
from tests.quantize.exporters.gguf.test_families import write as write_family

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
    values: NDArray[np.float32] = logits[0]
    return values


@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize("changes", [{}, {"model_type": "qwen2"}, {"rope_interleaved": True}])
@pytest.mark.parametrize("ternary", [None, TernaryScheme(), TernaryScheme(planes=2, group_size=64)])
def test_the_graph_computes_the_model(
    tmp_path: Path, ternary: TernaryScheme | None, changes: Mapping[str, Any]
) -> None:
    """Allow for its activations, which are int8 by blocks."""
    bundle = write(tmp_path / "a", ternary, {**SMALL, **changes})
    export_onnx(bundle, tmp_path / "m")
    ids = np.random.default_rng(1).integers(0, 40, 20).astype(np.int32)
    model = ReferenceModel(build_graph(bundle.config), lambda name: FloatWeight(values=bundle.weight(name).dense()))
    expected = model.forward(ids, model.new_cache())[0]
    actual = computed(tmp_path / "m", bundle, ids)
    cosines = (actual * expected).sum(1) / np.linalg.norm(actual, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.99
    assert np.median(cosines) > 0.998


def test_genai_reads_the_folder(tmp_path: Path) -> None:
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
    assert settings["bos_token"] == "<s>"
    assert "eos_token" not in settings  # it is no added token


def test_an_export_may_hold_a_draft(tmp_path: Path) -> None:
    bundle, draft = write(tmp_path / "a", TernaryScheme(), SMALL), write(tmp_path / "d", None, SMALL)
    export_onnx(bundle, tmp_path / "m", draft=draft)
    config = json.loads((tmp_path / "m" / "genai_config.json").read_text("utf-8"))
    assert config["speculative"] == {"max_draft_tokens": 4}
    assert config["model"]["draft"]["filename"] == "draft/model.onnx"
    ids = np.arange(5, dtype=np.int32)
    assert computed(tmp_path / "m" / "draft", draft, ids).shape == (5, 40)


def test_a_draft_with_another_tokenizer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write(tmp_path / "a", None, SMALL)
    from tests.quantize.exporters.gguf import test_export

    different = test_export.tokenizer("gpt-2")
    monkeypatch.setattr(test_export, "tokenizer", lambda: different)
    draft = write(tmp_path / "d", None, SMALL)
    with pytest.raises(UsageError, match=r"has another tokenizer than"):
        export_onnx(bundle, tmp_path / "m", draft=draft)
    assert not (tmp_path / "m").exists()


ONNX_FAMILIES: dict[str, dict[str, Any]] = {
    **FAMILIES,
    "phi3 partial": {**FAMILIES["phi3 partial"], "head_dim": 32, "partial_rotary_factor": 0.5},
    "phi3 partial longrope": {
        **FAMILIES["phi3 longrope"],
        "head_dim": 32,
        "partial_rotary_factor": 0.5,
        "sliding_window": 7,
    },
    "mistral window": {**FAMILIES["mistral"], "sliding_window": 6},
}


@pytest.mark.thorough(sample=5)
@pytest.mark.parametrize("family", ONNX_FAMILIES)
def test_every_family_equals_the_reference(tmp_path: Path, family: str) -> None:
    """Compare logits of a prefill, of steps and of a prefill after them; windows and caps are reached."""
    bundle = write_family(tmp_path / "b", ONNX_FAMILIES[family])
    export_onnx(bundle, tmp_path / "m")
    graph = build_graph(bundle.config)
    ids = np.random.default_rng(0).integers(0, 40, 30)
    model = ReferenceModel(graph, bundle.weight)
    expected = model.forward(ids.astype(np.int32), model.new_cache())[0][:, :40]
    session = ort.InferenceSession(str(tmp_path / "m" / "model.onnx"))
    names = [output.name for output in session.get_outputs()]
    past: dict[str, Any] = {
        f"past_key_values.{at}.{part}": np.zeros((1, state.kv_heads, 0, state.head_dim), np.float32)
        for at, state in enumerate(graph.states.values())
        for part in ("key", "value")
    }
    parts = []
    for start, stop in ((0, 13), (13, 14), (14, 15), (15, 30)):
        feeds = {"input_ids": ids[None, start:stop], "attention_mask": np.ones((1, stop), np.int64), **past}
        outputs = dict(zip(names, session.run(names, feeds), strict=True))
        parts.append(outputs.pop("logits")[0])
        past = {name.replace("present", "past_key_values"): values for name, values in outputs.items()}
    assert np.abs(np.concatenate(parts) - expected).max() < 3e-4 * expected.std()
    kind = json.loads((tmp_path / "m" / "genai_config.json").read_text("utf-8"))["model"]["type"]
    assert kind == ("decoder" if family == "bitnet" else bundle.config["model_type"])


def test_a_rotation_outside_of_the_operator_is_refused(tmp_path: Path) -> None:
    bundle = write_family(tmp_path / "b", FAMILIES["phi3 partial"])
    message = r"rope layers.0.q rotates 12 columns of a head; .* multiples of 16; export it as gguf or safetensors"
    with pytest.raises(UnsupportedError, match=message):
        export_onnx(bundle, tmp_path / "m")
    assert not (tmp_path / "m").exists()


_GENAI = """
import json, sys
import onnxruntime_genai as og
folder, *ids = sys.argv[1:]
model = og.Model(folder)
params = og.GeneratorParams(model)
params.set_search_options(max_length=len(ids) + 20)
generator = og.Generator(model, params)
generator.append_tokens([int(one) for one in ids])
while not generator.is_done():
    generator.generate_next_token()
print(json.dumps([int(one) for one in generator.get_sequence(0)][len(ids):]))
"""


@pytest.mark.nightly
@pytest.mark.parametrize("family", ONNX_FAMILIES)
def test_genai_writes_the_same_text(tmp_path: Path, family: str) -> None:
    """Let it speculate, as its configuration says."""
    python = next(cache_folder().glob("peers/onnxruntime-genai-*/bin/python"), None)
    if python is None:
        pytest.skip("onnxruntime-genai is not installed: python -m benchmarks.speculation.drafters installs it")
    bundle = write_family(tmp_path / "b", ONNX_FAMILIES[family])
    export_onnx(bundle, tmp_path / "m")
    prompt = [int(token) for token in np.random.default_rng(1).integers(4, 40, 14)]
    command = [str(python), "-c", _GENAI, str(tmp_path / "m"), *map(str, prompt)]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    reference = ReferenceModel(build_graph(bundle.config), bundle.weight)
    cache, text, rows = reference.new_cache(), list[int](), np.array(prompt, np.int32)
    while len(text) < 20 and not set(text) & set(bundle.tokens.eos):
        text.append(int(reference.forward(rows, cache)[0][-1][:40].argmax()))
        cache.commit(np.arange(len(rows), dtype=np.int32))
        rows = np.array(text[-1:], np.int32)
    has_end = text[-1] in bundle.tokens.eos  # genai leaves it out
    assert result == (text[:-1] if has_end else text)
