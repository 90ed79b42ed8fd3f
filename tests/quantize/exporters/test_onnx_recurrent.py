"""Test models with recurrent states as ONNX: graphs that ONNX Runtime runs without a custom operator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.host.ort import onnxruntime as ort
from edgedec.quantize.exporters.onnx import export_onnx
from edgedec.quantize.exporters.onnx_recurrent import PAST, PRESENT
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatWeight
from tests.quantize.exporters.gguf.test_families import write

VOCAB = 40
# Largest difference of a logit, in standard deviations of the logits: sums of float32 in another order.
TOLERANCE = 3e-4
_SIZES: dict[str, Any] = {"vocab_size": VOCAB, "max_position_embeddings": 64, "hidden_size": 32}
_ATTENTION: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
_DELTA: dict[str, Any] = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16},
    **{"full_attention_interval": 2, "partial_rotary_factor": 1.0},
}
MODELS: dict[str, dict[str, Any]] = {
    "mamba2": {
        **_SIZES,
        **{"model_type": "mamba2", "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2},
        **{"num_hidden_layers": 2, "expand": 2, "time_step_limit": [0.01, 0.5], "use_bias": True},
    },
    "falcon_h1": {
        **_SIZES,
        **_ATTENTION,
        **{"model_type": "falcon_h1", "intermediate_size": 64, "num_hidden_layers": 2, "mamba_d_ssm": 64},
        **{
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
        },
    },
    "qwen3_5_text": {
        **_SIZES,
        **_ATTENTION,
        **_DELTA,
        **{"model_type": "qwen3_5_text", "intermediate_size": 64, "num_hidden_layers": 2},
    },
    "qwen3_next": {
        **_SIZES,
        **_ATTENTION,
        **_DELTA,
        **{"model_type": "qwen3_next", "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_experts": 0, "mlp_only_layers": [0, 1]},
    },
    "kimi_linear": {  # a decay of each channel, and heads of keys and values that are joined and padded
        **{"model_type": "kimi_linear", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
        **{
            "num_attention_heads": 2,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
        },
        **{"linear_num_heads": 4, "linear_head_dim": 32, "layer_types": ["linear_attention", "full_attention"]},
        **{"first_k_dense_replace": 2, "vocab_size": VOCAB},
    },
}


def zeros(graph: Graph) -> dict[str, NDArray[np.float32]]:
    """Return the inputs of a graph before a text."""
    past = {
        f"past_key_values.{at}.{part}": np.zeros((1, state.kv_heads, 0, state.head_dim), np.float32)
        for at, state in enumerate(graph.states.values())
        for part in ("key", "value")
    }
    states = graph.recurrent.values()
    return past | {f"{PAST}.{at}": np.zeros((1, *one.shape), np.float32) for at, one in enumerate(states)}


def written(folder: Path, graph: Graph, ids: NDArray[np.int64], ends: Sequence[int]) -> NDArray[np.float32]:
    """Return the logits of a text that is run in passes with these ends, float32 [n, vocab]."""
    session = ort.InferenceSession(str(folder / "model.onnx"))
    names, past, parts = [output.name for output in session.get_outputs()], zeros(graph), []
    for start, stop in zip((0, *ends), (*ends, len(ids)), strict=False):
        feeds = {"input_ids": ids[None, start:stop], **past}
        if graph.states:
            feeds["attention_mask"] = np.ones((1, stop), np.int64)
        outputs = dict(zip(names, session.run(names, feeds), strict=True))
        parts.append(outputs.pop("logits")[0])
        renamed = (("present_recurrent", PAST), ("present", "past_key_values"))
        assert renamed[0][0] == PRESENT
        past = {
            name.replace(*(renamed[0] if name.startswith(PRESENT) else renamed[1])): values
            for name, values in outputs.items()
        }
    return np.concatenate(parts)


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_equals_the_reference(tmp_path: Path, name: str) -> None:
    """Compare logits of a prefill, of steps, and of a prefill after them."""
    bundle = write(tmp_path / "b", MODELS[name])
    export_onnx(bundle, tmp_path / "m")
    graph = build_graph(bundle.config)
    ids = np.random.default_rng(0).integers(0, VOCAB, 30)
    model = ReferenceModel(graph, bundle.weight)
    expected = model.forward(ids.astype(np.int32), model.new_cache())[0][:, :VOCAB]
    actual = written(tmp_path / "m", graph, ids, (13, 14, 15))
    assert np.abs(actual - expected).max() < TOLERANCE * expected.std()


def test_a_graph_has_no_operator_of_edgedec(tmp_path: Path) -> None:
    export_onnx(write(tmp_path / "b", MODELS["qwen3_5_text"]), tmp_path / "m")
    model = onnx.load(tmp_path / "m" / "model.onnx", load_external_data=False)
    assert {node.domain for node in model.graph.node} <= {"", "com.microsoft"}
    kinds = {node.op_type for node in model.graph.node}
    assert {"Scan", "Conv"} <= kinds
    assert {file.name for file in (tmp_path / "m").iterdir()} == {
        *("model.onnx", "weights.bin", "tokenizer.json", "tokenizer_config.json"),
    }


@pytest.mark.thorough
def test_the_embedded_hybrid_equals_the_reference_with_its_weights(tmp_path: Path) -> None:
    """Allow for its activations, which ONNX Runtime quantizes by blocks."""
    bundle = Bundle.open(demo.bundle_path("demo-hybrid"))
    export_onnx(bundle, tmp_path / "m")
    graph = build_graph(bundle.config)
    ids = np.random.default_rng(1).integers(0, bundle.tokens.size, 24)
    model = ReferenceModel(graph, lambda name: FloatWeight(values=bundle.weight(name).dense()))
    expected = model.forward(ids.astype(np.int32), model.new_cache())[0][:, : bundle.tokens.size]
    actual = written(tmp_path / "m", graph, ids, (10, 11))
    cosines = (actual * expected).sum(1) / np.linalg.norm(actual, axis=1) / np.linalg.norm(expected, axis=1)
    assert np.median(cosines) > 0.998


def test_what_the_graph_cannot_express_is_refused_by_name(tmp_path: Path) -> None:
    shape = {
        **_SIZES,
        **{"model_type": "phi4flash", "intermediate_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "sliding_window": 20, "mamba_d_state": 4},
    }
    with pytest.raises(UnsupportedError, match=r"layer_norm \S+ cannot be exported as ONNX; the float reference"):
        export_onnx(write(tmp_path / "b", shape), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_draft_is_refused(tmp_path: Path) -> None:
    bundle = write(tmp_path / "b", MODELS["mamba2"])
    with pytest.raises(UsageError, match=r"b has recurrent states, .* without --model-draft"):
        export_onnx(bundle, tmp_path / "m", draft=bundle)
    assert not (tmp_path / "m").exists()
