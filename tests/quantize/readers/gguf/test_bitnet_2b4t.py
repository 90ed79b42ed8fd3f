"""Test the two forms in which BitNet 2B4T was published as GGUF, on small files of our own with the keys of public logs.

Logs that users of bitnet.cpp and ik_llama.cpp have posted show 24 keys in each: ``bitnet-b1.58`` with 332 tensors for 30
layers, and the earlier ``bitnet-25`` with 333, because the head is stored, too. Neither has ``tokenizer.ggml.pre``. A file
of Microsoft's own was not available.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, pre_tokenizers

from edgedec.bundle.bundle import Bundle
from edgedec.families import build_graph
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import TernaryWeight
from tests.quantize.readers.gguf.test_i2s import HIDDEN, I2_S, INTER, NAMES, i2_s, planted
from tests.quantize.readers.support import make_gguf as builder

LAYERS, HEADS, KV_HEADS, SCALE = 2, 4, 2, 0.5
DIM = HIDDEN // HEADS
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = [*LETTERS, "he", "ll", "12", "123", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
BOS, END, TURN = 260, 261, 262
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
F32 = NDArray[np.float32]


def keys(architecture: str) -> dict[str, Any]:
    """Return the keys in the order of the logs."""
    sizes = {
        "vocab_size": len(TOKENS),
        "context_length": 64,
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": INTER,
        "rope.dimension_count": DIM,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
    }
    return {
        "general.architecture": architecture,
        "general.name": "bitnet2b",
        **{f"{architecture}.{key}": value for key, value in sizes.items()},
        "tokenizer.ggml.add_bos_token": True,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 500000.0,
        "general.file_type": 40,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.0] * len(TOKENS),
        "tokenizer.ggml.token_type": [1] * (len(TOKENS) - 3) + [3] * 3,
        "tokenizer.ggml.merges": ["h e", "l l", "1 2", "12 3"],
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.padding_token_id": END,
        "tokenizer.chat_template": TEMPLATE,
        "general.quantization_version": 2,
    }


def write(path: Path, architecture: str, layout: str) -> tuple[list[dict[str, NDArray[np.int8]]], F32]:
    """Write a file, and return the trits of its layers and the embedding."""
    rng = np.random.default_rng(7)
    embedding = rng.standard_normal((len(TOKENS), HIDDEN)).astype(np.float16)
    layers = [planted(np.random.default_rng(seed), importance=True) for seed in range(LAYERS)]

    def half(name: str, values: NDArray[np.float16]) -> builder.RawTensor:
        return builder.tensor(name, values.astype(np.float32), kind=builder.F16, data=values.tobytes())

    tensors = [half("token_embd.weight", embedding)]
    for at, layer in enumerate(layers):
        for norm, width in (
            ("attn_norm", HIDDEN),
            ("attn_sub_norm", HIDDEN),
            ("ffn_norm", HIDDEN),
            ("ffn_sub_norm", INTER),
        ):
            tensors.append(builder.tensor(f"blk.{at}.{norm}.weight", np.ones(width, np.float32)))
        for name, trits in layer.items():
            data = i2_s(trits, layout, SCALE)
            tensors.append(builder.RawTensor(f"blk.{at}.{name}.weight".encode(), trits.shape[::-1], I2_S, data))
    tensors.append(builder.tensor("output_norm.weight", np.ones(HIDDEN, np.float32)))
    if architecture == "bitnet-25":
        tensors.append(half("output.weight", -embedding))  # bitnet.cpp loads it, and its graph takes the embedding
    path.write_bytes(builder.file_bytes(keys(architecture), tensors))
    return layers, embedding.astype(np.float32)


def logits(layers: list[dict[str, NDArray[np.int8]]], embedding: F32, ids: list[int]) -> F32:
    """Return the logits [ids, tokens] by bitnet.cpp's graph, build_bitnet_158, in plain NumPy."""

    def norm(x: Any) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def turn(x: Any) -> Any:
        angles = np.arange(len(ids))[:, None, None] * 500000.0 ** (-2 * np.arange(DIM // 2) / DIM)
        one, two = x[..., : DIM // 2], x[..., DIM // 2 :]
        cosine, sine = np.cos(angles), np.sin(angles)
        return np.concatenate([one * cosine - two * sine, two * cosine + one * sine], -1)

    x = embedding[ids].astype(np.float64)
    for layer in layers:
        w = {name: SCALE * trits.astype(np.float64) for name, trits in layer.items()}
        normed = norm(x)
        q = turn((normed @ w["attn_q"].T).reshape(len(ids), HEADS, DIM))
        k = turn((normed @ w["attn_k"].T).reshape(len(ids), KV_HEADS, DIM)).repeat(HEADS // KV_HEADS, 1)
        v = (normed @ w["attn_v"].T).reshape(len(ids), KV_HEADS, DIM).repeat(HEADS // KV_HEADS, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(DIM) + np.triu(np.full((len(ids),) * 2, -np.inf), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", shares / shares.sum(-1, keepdims=True), v).reshape(len(ids), HIDDEN)
        x = x + norm(mixed) @ w["attn_output"].T
        normed = norm(x)
        gated = np.maximum(normed @ w["ffn_gate"].T, 0) ** 2 * (normed @ w["ffn_up"].T)
        x = x + norm(gated) @ w["ffn_down"].T
    return np.asarray(norm(x) @ embedding.T.astype(np.float64), np.float32)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("layout", ["x86", "arm"])
@pytest.mark.parametrize("architecture", ["bitnet-b1.58", "bitnet-25"])
def test_a_file_with_the_keys_of_the_logs_is_read(
    architecture: str, layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layers, _ = write(tmp_path / "ggml-model-i2_s.gguf", architecture, layout)
    quantize(open_checkpoint(tmp_path / "ggml-model-i2_s.gguf"), tmp_path / "b", QuantizeOptions(method="ternary"),
             vocab_limit=len(TOKENS))  # fmt: skip
    bundle = Bundle.open(tmp_path / "b")
    for at, layer in enumerate(layers):
        for name, trits in layer.items():
            weight = bundle.weight(f"model.layers.{at}.{NAMES[name]}.weight")
            assert isinstance(weight, TernaryWeight)
            np.testing.assert_array_equal(weight.trits[0], trits)
    assert (bundle.tokens.bos, bundle.tokens.eos, bundle.chat_template) == (BOS, (END, TURN), TEMPLATE)
    tokenizer = Tokenizer.from_str(bundle.tokenizer_file.read_text())
    assert tokenizer.encode("hello 123<|eot_id|>").ids == [
        BOS, *(TOKENS.index(text) for text in ("he", "ll", "o", "\u0120", "123")), TURN
    ]  # fmt: skip
    assert "pre is missing; texts are split by llama.cpp's default" in caplog.text
    assert ("'output.weight' is left out" in caplog.text) is (architecture == "bitnet-25")


def test_the_logits_are_those_of_bitnet_cpps_graph(tmp_path: Path) -> None:
    layers, embedding = write(tmp_path / "m.gguf", "bitnet-25", "x86")
    quantize(
        open_checkpoint(tmp_path / "m.gguf"), tmp_path / "b", QuantizeOptions(method="float"), vocab_limit=len(TOKENS)
    )
    bundle = Bundle.open(tmp_path / "b")
    ids = [BOS, 64, 256, 12, 200, 31]
    model = ReferenceModel(build_graph(bundle.config), bundle.weight)
    actual = model.forward(np.array(ids, np.int32), model.new_cache())[0]
    np.testing.assert_allclose(actual, logits(layers, embedding, ids), atol=2e-3)


@pytest.mark.parametrize(("said", "activation"), [(None, "silu"), ("silu", "silu"), ("relu2", "relu2")])
def test_the_activation_of_a_bitnet_is_the_one_that_the_file_names(
    said: str | None, activation: str, tmp_path: Path
) -> None:
    path = builder.write_model(tmp_path, "bitnet", bitnet__hidden_activation=said)
    assert open_checkpoint(path).config["hidden_act"] == activation
