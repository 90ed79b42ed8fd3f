"""Write models whose matrices are ternary in groups of 128 columns, in every form in which they are distributed.

The blocks are packed weight by weight, as their definitions read, and share no code with the reader.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.quantize.readers.support import make_gguf
from tests.quantize.readers.support.make_checkpoints import write_hf

HIDDEN, INTER, VOCAB, HEAD_DIM, GROUP = 256, 384, 13, 128, 128
F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
LAYER = {  # llama.cpp's names of the parts of a layer, and Hugging Face's
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}


@dataclass(frozen=True)
class Matrix:
    """Hold codes int8 [rows, columns] in -1..2 and scales float32 [rows, columns / 128]."""

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]

    def dense(self) -> NDArray[np.float32]:
        return np.repeat(self.scales, GROUP, axis=1) * self.codes.astype(np.float32)


Model = Mapping[str, Matrix | NDArray[np.float32]]


def random_scales(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Return scales that float16 and bfloat16 hold exactly."""
    return (rng.integers(128, 256, shape) / 2048).astype(np.float32)


def random_model(seed: int = 0, *, tied: bool = True, codes: Sequence[int] = (-1, 0, 1)) -> dict[str, Any]:
    """Return tensors of a qwen3 with one layer, by llama.cpp's names."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Matrix:
        values = rng.choice(np.array(codes, np.int8), (rows, columns))
        return Matrix(values, random_scales(rng, rows, columns // GROUP))

    def norm(width: int) -> NDArray[np.float32]:
        return rng.uniform(1, 2, width).astype(np.float32)  # no fractions that would be rounded as ties

    model: dict[str, Any] = {"token_embd.weight": matrix(VOCAB, HIDDEN), "output_norm.weight": norm(HIDDEN)}
    if not tied:
        model["output.weight"] = matrix(VOCAB, HIDDEN)
    shapes = {
        "attn_q": (2 * HEAD_DIM, HIDDEN),
        "attn_k": (HEAD_DIM, HIDDEN),
        "attn_v": (HEAD_DIM, HIDDEN),
        "attn_output": (HIDDEN, 2 * HEAD_DIM),
        "ffn_gate": (INTER, HIDDEN),
        "ffn_up": (INTER, HIDDEN),
        "ffn_down": (HIDDEN, INTER),
    }
    model |= {f"blk.0.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    for name, width in {"attn_norm": HIDDEN, "ffn_norm": HIDDEN, "attn_q_norm": 128, "attn_k_norm": 128}.items():
        model[f"blk.0.{name}.weight"] = norm(width)
    return model


def _half(value: float) -> bytes:
    return struct.pack("<e", value)


def _two_bit_block(codes: Sequence[int], scale: float) -> bytes:
    data = bytearray(len(codes) // 4)
    for at, code in enumerate(codes):
        data[at // 4] |= (code + 1) << 2 * (at % 4)
    return _half(scale) + bytes(data)


def _digits(trits: Sequence[int]) -> int:
    """Return the byte of up to five digits, the first of which is the highest."""
    number = 0
    for place in range(5):
        number = 3 * number + (trits[place] + 1 if place < len(trits) else 0)
    return ceil(number * 256 / 243)


def _base_3_block(codes: Sequence[int], scale: float, runs: Sequence[tuple[int, int]]) -> bytes:
    """Return the bytes of runs of (bytes, digits of a byte), then the scale: digit n of byte m is column m + n * bytes."""
    data, start = bytearray(), 0
    for width, digits in runs:
        for byte in range(width):
            data.append(_digits([codes[start + byte + place * width] for place in range(digits)]))
        start += width * digits
    return bytes(data) + _half(scale)


def _tq2_0_block(codes: Sequence[int], scale: float) -> bytes:
    data = bytearray(64)
    for at, code in enumerate(codes):
        half, inside = divmod(at, 128)
        data[32 * half + inside % 32] |= (code + 1) << 2 * (inside // 32)
    return bytes(data) + _half(scale)


@dataclass(frozen=True)
class Packing:
    """Describe a type: GGUF's number, the columns of a block, and the function that packs one."""

    number: int
    columns: int
    block: Callable[[Sequence[int], float], bytes]

    def data(self, matrix: Matrix) -> bytes:
        blocks = []
        for codes, scales in zip(matrix.codes.tolist(), matrix.scales.tolist(), strict=True):
            for start in range(0, len(codes), self.columns):
                blocks.append(self.block(codes[start : start + self.columns], scales[start // GROUP]))
        return b"".join(blocks)


PACKINGS = {
    "Q2_0": Packing(42, 64, _two_bit_block),
    "Q2_0 of 128": Packing(42, 128, _two_bit_block),
    "PQ2_0": Packing(142, 128, _two_bit_block),
    "PTQ1_0": Packing(143, 128, lambda codes, scale: _base_3_block(codes, scale, ((16, 5), (8, 5), (2, 4)))),
    "TQ1_0": Packing(34, 256, lambda codes, scale: _base_3_block(codes, scale, ((32, 5), (16, 5), (4, 4)))),
    "TQ2_0": Packing(35, 256, _tq2_0_block),
}
FLOATS = {"F32": (0, F32), "F16": (1, F16), "BF16": (30, BF16)}


def tensor(name: str, values: Matrix | NDArray[np.float32], kind: str) -> make_gguf.RawTensor:
    """Return a tensor of the file: a matrix in the type ``kind``, a vector as F32."""
    if not isinstance(values, Matrix):
        return make_gguf.tensor(name, values)
    sizes = values.codes.shape[::-1]
    if kind in FLOATS:
        number, dtype = FLOATS[kind]
        return make_gguf.RawTensor(name.encode(), sizes, number, values.dense().astype(dtype).tobytes())
    packing = PACKINGS[kind]
    return make_gguf.RawTensor(name.encode(), sizes, packing.number, packing.data(values))


def metadata(architecture: str = "qwen3", **changes: Any) -> dict[str, Any]:
    """Return metadata of a model with the sizes of ``random_model``."""
    sizes = {
        "embedding_length": HIDDEN,
        "feed_forward_length": INTER,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
    }
    keys = {f"{architecture}.{name}".replace(".", "__"): value for name, value in sizes.items()}
    return make_gguf.metadata(architecture, **(keys | changes))


def write_gguf(path: Path, model: Model, kind: str, **changes: Any) -> Path:
    tensors = [tensor(name, values, kind) for name, values in model.items()]
    path.write_bytes(make_gguf.file_bytes(metadata(**changes), tensors))
    return path


def hf_name(name: str) -> str:
    """Return Hugging Face's name of a tensor."""
    top = {"token_embd.weight": "model.embed_tokens", "output_norm.weight": "model.norm", "output.weight": "lm_head"}
    if name in top:
        return f"{top[name]}.weight"
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER[part]}.weight"


def write_folder(folder: Path, model: Model, kind: str) -> Path:
    """Write an unpacked Hugging Face folder."""
    _, dtype = FLOATS[kind]
    values = {
        hf_name(name): (value.dense() if isinstance(value, Matrix) else value).astype(dtype)
        for name, value in model.items()
    }
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INTER, "head_dim": HEAD_DIM, "vocab_size": VOCAB}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
    tied = "output.weight" not in model
    more: dict[str, Any] = {"model_type": "qwen3", "tie_word_embeddings": tied, "rope_theta": 1e4, "rms_norm_eps": 1e-5}
    return write_hf(folder, values, **sizes, **heads, **more, max_position_embeddings=64, hidden_act="silu")
