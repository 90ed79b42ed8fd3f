"""Repack the embedded model into each ternary type, and compare its bundles and its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import SamplingConfig, Session, demo
from edgedec.bundle.bundle import Bundle
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import Checkpoint, open_checkpoint
from edgedec.schemes import TernaryScheme
from tests.quantize.readers.support import make_gguf
from tests.quantize.readers.support import make_ternary_gguf as maker
from tests.quantize.readers.support.make_ternary_gguf import GROUP, Matrix

PROMPT = "Once upon a time"


def trained(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the embedded model by llama.cpp's names, with float16 scales, one for each 128 columns.

    Every second row has slightly larger scales than the trained ones, so that a matrix has several.
    """
    layers, heads = checkpoint.config["num_hidden_layers"], checkpoint.config["num_attention_heads"]
    names = {"token_embd.weight", "output_norm.weight"}
    names |= {f"blk.{layer}.{part}.weight" for layer in range(layers) for part in maker.LAYER if "norm" not in part}
    names |= {f"blk.{layer}.{part}.weight" for layer in range(layers) for part in ("attn_norm", "ffn_norm")}
    model: dict[str, Any] = {}
    for name in sorted(names):
        values = checkpoint.load(maker.hf_name(name)).astype(np.float32)
        if ".attn_q." in name or ".attn_k." in name:  # llama.cpp rotates neighbours
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        if values.ndim == 2 and "blk" in name:
            scales = np.full((len(values), values.shape[1] // GROUP), np.abs(values).max(), np.float16)
            scales[1::2] *= np.float16(1.0625)
            model[name] = Matrix(np.sign(values).astype(np.int8), scales.astype(np.float32))
        else:
            model[name] = values
    return model


def text(bundle: Bundle) -> str:
    with Session.open(bundle.path, ctx_size=96) as session:
        return session.generate(PROMPT, n_predict=60, sampling=SamplingConfig(temperature=0)).text


@pytest.mark.thorough
def test_the_text_is_the_same_in_every_type(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(demo.TARGET)
    model, config = trained(checkpoint), checkpoint.config
    changes = {
        "llama__block_count": config["num_hidden_layers"],
        "llama__context_length": config["max_position_embeddings"],
        "llama__embedding_length": config["hidden_size"],
        "llama__feed_forward_length": config["intermediate_size"],
        "llama__attention__head_count": config["num_attention_heads"],
        "llama__attention__head_count_kv": config["num_key_value_heads"],
    }
    bundles = {}
    for kind in ("F32", "Q2_0", "PQ2_0", "PTQ1_0"):
        tensors = [
            maker.tensor(name, values, kind) if isinstance(values, Matrix) else make_gguf.tensor(name, values)
            for name, values in model.items()
        ]
        path = tmp_path / f"{kind}.gguf"
        path.write_bytes(make_gguf.file_bytes(make_gguf.metadata(**changes), tensors))
        opened = open_checkpoint(path, demo.TARGET)
        quantize(opened, tmp_path / kind, QuantizeOptions(method="ternary"), vocab_limit=config["vocab_size"])
        bundles[kind] = Bundle.open(tmp_path / kind)
    expected = bundles["F32"]
    assert expected.tensors["model.layers.0.mlp.up_proj.weight"].scheme == TernaryScheme(
        group_size=128, half_scales=True
    )
    written = text(expected)
    assert len(written) > 60
    assert written.count("the") > 1
    for kind, bundle in bundles.items():
        assert (bundle.path / "weights.bin").read_bytes() == (expected.path / "weights.bin").read_bytes(), kind
        assert text(bundle) == written
