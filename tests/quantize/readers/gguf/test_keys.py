"""Test that no key of a file is left out silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.quantize.pipeline import checkpoint_graph
from edgedec.quantize.readers import Checkpoint, open_checkpoint
from edgedec.quantize.readers.gguf.keys import ARCHITECTURE_KEYS, TOKENIZER_KEYS
from tests.quantize.readers.support import make_gguf as builder

LEFT_OUT = "these keys are left out, as llama.cpp leaves them out for this model: "


def opened(folder: Path, more: dict[str, Any], architecture: str = "llama", **changes: Any) -> Checkpoint:
    """Open a file with further tensors; a float is a key, an array a tensor."""
    tensors = builder.values() | {name: values for name, values in more.items() if isinstance(values, np.ndarray)}
    keys = {name: value for name, value in more.items() if not isinstance(value, np.ndarray)}
    path = folder / "model.gguf"
    metadata = builder.metadata(architecture, **changes) | keys
    path.write_bytes(builder.file_bytes(metadata, [builder.tensor(*item) for item in tensors.items()]))
    return open_checkpoint(path)


@pytest.mark.parametrize(
    "key",
    [
        *("llama.attention.scale", "llama.logit_scale", "llama.attention.sliding_window", "llama.rope.freq_base_swa"),
        *(
            "llama.rope.scaling.yarn_log_multiplier",
            "llama.a_key_of_tomorrow",
            "phi3.rope.scaling.factor",
            "medusa.heads",
        ),
        *("tokenizer.ggml.suppress_tokens", "tokenizer.ggml.a_key_of_tomorrow", "tokenizer.huggingface.json"),
        *("general.sampling.temp", "tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.normalizer.lowercase"),
    ],
)
def test_keys_that_llama_cpp_leaves_out_are_named(key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(tmp_path, {key: 0.5})
    assert caplog.text.count(f"{LEFT_OUT}{key}\n") == 1


def test_a_sound_file_needs_no_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known: dict[str, Any] = {f"llama.{key}": 1 for key in ARCHITECTURE_KEYS}
    known |= {f"tokenizer.ggml.{key}": 1 for key in TOKENIZER_KEYS["llama"]}
    known |= {"general.name": "x", "quantize.imatrix.file": "x", "tokenizer.ggml.remove_extra_whitespaces": False}
    known |= {"tokenizer.ggml.pre": "default", "llama.vocab_size": builder.VOCAB}
    opened(tmp_path, known)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"llama.attention.causal": False}, UnsupportedError, r"llama.attention.causal False is not read"),
        ({"llama.nextn_predict_layers": 1}, UnsupportedError, r"nextn_predict_layers 1 is not read: a llama has no"),
        ({"llama.expert_used_count": 2}, UnsupportedError, r"expert_used_count 2 is not read: models with experts"),
        ({"llama.expert_used_count": [1, 2]}, UnsupportedError, r"expert_used_count array\(.* is not read"),
        ({"general.type": "adapter"}, UnsupportedError, r"general.type 'adapter' is not a language model"),
        ({"general.type": "mmproj"}, UnsupportedError, r"general.type 'mmproj' is not a language model"),
        ({"general.type": 1}, UnsupportedError, r"general.type 1 is not a language model"),
        ({"adapter.type": "lora"}, UnsupportedError, r"adapter.type belongs to an adapter"),
        ({"llama.rope.scaling.type": 1}, BundleError, r"rope.scaling.type must be text, not 1"),
        ({"llama.rope.scaling.attn_factor": 0.0}, BundleError, r"attn_factor must be a positive number, not 0"),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 0.5},
            UnsupportedError,
            r"rope.scaling.factor 0.5 of YaRN is below 1",
        ),
        (
            {"blk.0.attn_norm.bias": np.ones(builder.HIDDEN, np.float32)},
            UnsupportedError,
            r"'blk.0.attn_norm.bias' has no place in a llama; biases that llama.cpp has there: attn_q",
        ),
    ],
)
def test_what_would_change_the_model_is_refused(
    more: dict[str, Any], error: type[EdgedecError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        opened(tmp_path, more)


def test_another_number_of_tokens_is_named_or_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert opened(tmp_path, {"llama.vocab_size": 12}).config["vocab_size"] == builder.VOCAB
    assert "llama.vocab_size is 12, but the embedding has 13 rows; the rows count" in caplog.text
    with pytest.raises(BundleError, match=r"llama.vocab_size is 12, but the embedding has 13 rows"):
        opened(tmp_path, {"llama.vocab_size": 12}, tokenizer__ggml__tokens=None)


# --- rotations

_LISTED = {"rope_type": "longrope", "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"factor": 4.0, "type": "longrope"}, {"rope_type": "linear", "factor": 4.0}),
        ({"factor": 4.0, "type": "none"}, None),
        ({"factor": 0.0}, None),
        (
            {"factor": 2.0, "attn_factor": 1.5},
            {**_LISTED, "short_factor": [2.0, 2.0], "long_factor": [2.0, 2.0], "attention_factor": 1.5},
        ),
        (
            {"factor": 0.25},
            {**_LISTED, "short_factor": [0.25, 0.25], "long_factor": [0.25, 0.25], "attention_factor": 1.0},
        ),
        (
            {"type": "yarn", "factor": 4.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 16, "attn_factor": 2.0},
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "attention_factor": 2 + 0.2 * np.log(4),
            },
        ),
    ],
)
def test_rotations_are_scaled_as_by_llama_cpp(keys: dict[str, Any], expected: Any, tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, {f"llama.rope.scaling.{key}": value for key, value in keys.items()})
    assert checkpoint.config.get("rope_scaling") == expected
    checkpoint_graph(checkpoint)


def test_the_older_key_of_a_factor_is_read(tmp_path: Path) -> None:
    older = opened(tmp_path, {"llama.rope.scale_linear": 3.0})
    assert older.config["rope_scaling"] == {"rope_type": "linear", "factor": 3.0}
    both = opened(tmp_path, {"llama.rope.scale_linear": 3.0, "llama.rope.scaling.factor": 2.0})
    assert both.config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}


def test_factors_and_a_factor_are_multiplied(tmp_path: Path) -> None:
    factors = np.array([1.0, 3.0], np.float32)
    checkpoint = opened(tmp_path, {"rope_freqs.weight": factors, "llama.rope.scaling.factor": 2.0})
    assert checkpoint.config["rope_scaling"]["short_factor"] == [2.0, 6.0]


# --- biases and heads


def test_a_bias_by_itself_is_read_and_the_others_are_zero(tmp_path: Path) -> None:
    bias = np.arange(builder.HIDDEN, dtype=np.float32)
    checkpoint = opened(tmp_path, {"blk.0.attn_q.bias": bias, "blk.0.ffn_up.bias": np.ones(builder.INTER, np.float32)})
    checkpoint_graph(checkpoint)
    at = "model.layers.0."
    assert sorted(checkpoint.load(f"{at}self_attn.q_proj.bias")) == bias.tolist()  # in the order of halves
    for name in ("self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"):
        assert not checkpoint.load(f"{at}{name}.bias").any()
    assert checkpoint.load(f"{at}mlp.up_proj.bias").all()


def test_qwen2_without_biases_has_zeros(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, {}, "qwen2")
    checkpoint_graph(checkpoint)
    assert not checkpoint.load("model.layers.0.self_attn.v_proj.bias").any()
    assert "model.layers.0.self_attn.o_proj.bias" not in checkpoint.tensors


def test_one_bias_of_fused_rows_is_refused(tmp_path: Path) -> None:
    rows = builder.HIDDEN + 2 * builder.KV_HEADS * builder.HIDDEN // builder.HEADS
    fused = {"blk.0.attn_qkv.weight": np.ones((rows, builder.HIDDEN), np.float32)}
    with pytest.raises(UnsupportedError, match=r"'blk.0.attn_qkv.weight' has not all three biases, which llama.cpp"):
        opened(tmp_path, fused | {"blk.0.attn_q.bias": np.ones(builder.HIDDEN, np.float32)})


@pytest.mark.parametrize(("architecture", "tied"), [("llama", False), ("qwen2", False), ("bitnet-b1.58", True)])
def test_a_head_of_its_own_is_read_where_the_graph_has_one(
    architecture: str, tied: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = np.ones((builder.VOCAB, builder.HIDDEN), np.float32)
    checkpoint = opened(tmp_path, {"output.weight": head}, architecture)
    assert checkpoint.config["tie_word_embeddings"] is tied
    assert ("lm_head.weight" in checkpoint.tensors) is not tied
    assert ("tensor 'output.weight' is left out, because the head is the embedding" in caplog.text) is tied


@pytest.mark.parametrize("architecture", ["gemma", "gemma2", "bitnet"])
def test_a_head_that_llama_cpp_refuses_is_refused(architecture: str, tmp_path: Path) -> None:
    head = np.ones((builder.VOCAB, builder.HIDDEN), np.float32)
    with pytest.raises(UnsupportedError, match=rf"'output.weight': the head of a {architecture} is its embedding"):
        opened(tmp_path, {"output.weight": head}, architecture)
