"""Compare llama2.c checkpoints with the arrays that the test wrote, and with the trained models."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from edgedec.errors import BundleError, UsageError
from edgedec.quantize.readers import TensorInfo, open_checkpoint
from tests.quantize.readers.support.make_checkpoints import (
    hf_tokenizer,
    llama2c_tensors,
    quantize_q80,
    write_json,
    write_llama2c,
)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("tied", [True, False])
def test_tensors_equal_the_written_arrays(tmp_path: Path, version: int, tied: bool) -> None:
    checkpoint = open_checkpoint(write_llama2c(tmp_path, version, tied=tied))
    expected = llama2c_tensors(tied)
    assert dict(checkpoint.tensors) == {
        name: TensorInfo(shape=array.shape, dtype="float32") for name, array in expected.items()
    }
    for name, array in expected.items():
        loaded = checkpoint.load(name)
        assert loaded.dtype == np.float32
        assert loaded.flags.c_contiguous
        if version == 2 and array.ndim == 2:
            codes, scales = quantize_q80(array, 4)
            array = (codes.astype(np.float32) * scales[:, np.newaxis]).reshape(array.shape)
        np.testing.assert_array_equal(loaded, array)


def test_the_configuration_is_read(tmp_path: Path) -> None:
    assert open_checkpoint(write_llama2c(tmp_path, 0, tied=False)).config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "vocab_size": 13,
        "max_position_embeddings": 6,
        "rope_theta": 10000.0,
        "rope_interleaved": True,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": [2, 1],
    }


def test_the_tokenizer_lies_beside_the_model_or_is_named(tmp_path: Path) -> None:
    path = write_llama2c(tmp_path)
    checkpoint = open_checkpoint(path)
    assert (checkpoint.bos_token, checkpoint.bos_token_id) == ("<s>", 1)
    assert (checkpoint.eos_token, checkpoint.eos_token_ids) == ("</s>", (2, 1))
    assert Tokenizer.from_str(checkpoint.tokenizer_json).encode("the").tokens == ["<s>", " the"]
    tokenizer_file = write_json(tmp_path / "tokenizer.json", hf_tokenizer())
    assert Tokenizer.from_str(open_checkpoint(path, tokenizer_file).tokenizer_json).encode("the").tokens == [
        "<s>",
        *"the",
    ]
    (tmp_path / "tokenizer.bin").unlink()
    with pytest.raises(UsageError, match=r"has no tokenizer.bin; pass the model's tokenizer with --tokenizer"):
        open_checkpoint(path)
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(BundleError, match=r"tokenizer.model: 0 bytes cannot be a tokenizer's model"):
        open_checkpoint(path)
    with pytest.raises(BundleError, match=r"tokenizer.model: 0 bytes cannot be a tokenizer's model"):
        open_checkpoint(path, tmp_path / "tokenizer.model")


def test_peak_memory_is_one_tensor(shared_data: Path) -> None:
    folder = shared_data / "models" / "stories260K"
    checkpoint = open_checkpoint(folder / "stories260K-q8.bin", shared_data / "tokenizers" / "tok512.bin")
    largest = 512 * 64 * 4
    tracemalloc.start()
    for name in checkpoint.tensors:
        checkpoint.load(name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # bytes: float32, the codes (a quarter), a scale for each group of 8 codes (an eighth), and NumPy's buffers
    assert largest <= peak < 1.375 * largest + 98304


def test_the_8_bit_model_equals_the_float_model_within_half_a_step(shared_data: Path) -> None:
    folder, tokenizer = shared_data / "models" / "stories260K", shared_data / "tokenizers" / "tok512.bin"
    exact, coded = (open_checkpoint(folder / f"stories260K{end}.bin", tokenizer) for end in ("", "-q8"))
    assert exact.config == coded.config
    assert dict(exact.tensors) == dict(coded.tensors)
    for name, info in exact.tensors.items():
        expected, loaded = exact.load(name), coded.load(name)
        if len(info.shape) == 1:
            np.testing.assert_array_equal(loaded, expected)
            continue
        half_step = np.abs(expected.reshape(-1, 8)).max(axis=1, keepdims=True) / 127 / 2
        error = np.abs(loaded - expected).reshape(-1, 8)
        assert (error <= half_step * 1.0001 + 1e-9).all(), name
        assert error.max() > 0


def test_the_character_model_is_read(shared_data: Path) -> None:
    path = shared_data / "models" / "babyllama-tok105" / "model5000.bin"
    checkpoint = open_checkpoint(path, shared_data / "tokenizers" / "tok105.vocab")
    assert checkpoint.config["vocab_size"] == 105
    assert checkpoint.tensors["model.layers.4.mlp.down_proj.weight"].shape == (128, 352)
    for name in checkpoint.tensors:
        loaded = checkpoint.load(name)
        # Misplaced floats would be noise; norms and rows of a trained model are not.
        assert np.isfinite(loaded).all(), name
        assert 1e-3 < np.abs(loaded).mean() < 10, name
