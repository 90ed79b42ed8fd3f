"""Test I2_S: each of its layouts is recognized by weights that were trained, and never guessed from others."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.demo import bundle_path
from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import Checkpoint, open_checkpoint
from edgedec.quantize.readers.gguf.header import read_header
from edgedec.quantize.readers.gguf.i2s import layout_of
from edgedec.schemes import TernaryWeight
from tests.quantize.readers.support import make_gguf as builder

I2_S = 36
HIDDEN, INTER = 128, 512
MATRICES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (HIDDEN // 2, HIDDEN),
    "attn_v": (HIDDEN // 2, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (INTER, HIDDEN),
    "ffn_up": (INTER, HIDDEN),
    "ffn_down": (HIDDEN, INTER),
}
I8 = NDArray[np.int8]


def i2_s(trits: I8, layout: str, scale: float = 0.5, tail: bytes = b"\0" * 28) -> bytes:
    """Encode as bitnet.cpp's loops over the weights do, one after the other."""
    columns = trits.shape[1]
    packed = bytearray(trits.size // 4)
    together = {"x86": 32, "arm": 16}.get(layout)
    for at, trit in enumerate(trits.reshape(-1).tolist()):
        if together is None:
            row, column = divmod(at, columns)
            byte, place = row // 4 * columns + column, row % 4
        else:
            block, inside = divmod(at, 4 * together)
            place, byte = divmod(inside, together)
            byte += block * together
        packed[byte] |= trit + 1 << 6 - 2 * place
    return bytes(packed) + struct.pack("<f", scale) + tail


def planted(rng: np.random.Generator, *, importance: bool) -> dict[str, I8]:
    """Return a layer; with ``importance`` some neurons have more weights than others, as in a trained one."""
    density = rng.uniform(0.2, 0.9, INTER) if importance else np.full(INTER, 0.6)
    shares = {"ffn_gate": density[:, None], "ffn_up": density[:, None], "ffn_down": density}
    layer = {}
    for name, shape in MATRICES.items():
        nonzero = rng.random(shape) < shares.get(name, np.float64(0.6))
        layer[name] = np.where(nonzero, rng.choice([-1, 1], shape), 0).astype(np.int8)
    return layer


def model(layers: list[dict[str, I8]], layout: str) -> bytes:
    hidden, inter = layers[0]["ffn_down"].shape
    rng = np.random.default_rng(1)
    tensors = [
        builder.tensor("token_embd.weight", rng.standard_normal((builder.VOCAB, hidden), np.float32)),
        builder.tensor("output_norm.weight", np.ones(hidden, np.float32)),
    ]
    for number, layer in enumerate(layers):
        for norm in ("attn_norm", "ffn_norm"):
            tensors.append(builder.tensor(f"blk.{number}.{norm}.weight", np.ones(hidden, np.float32)))
        for name, trits in layer.items():
            data = i2_s(trits, layout)
            tensors.append(builder.RawTensor(f"blk.{number}.{name}.weight".encode(), trits.shape[::-1], I2_S, data))
            if name in ("attn_q", "attn_k", "attn_v"):
                tensors.append(builder.tensor(f"blk.{number}.{name}.bias", np.zeros(len(trits), np.float32)))
    changes = {"block_count": len(layers), "embedding_length": hidden, "feed_forward_length": inter}
    heads = {"attention.head_count": 4, "attention.head_count_kv": 4 * len(layers[0]["attn_k"]) // hidden}
    return builder.file_bytes(
        builder.metadata("qwen2") | {f"qwen2.{key}": value for key, value in (changes | heads).items()}, tensors
    )


NAMES = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"} | {
    f"attn_{projection}": f"self_attn.{projection[0]}_proj" for projection in ("q", "k", "v", "output")
}


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("layout", ["x86", "arm", "rows"])
def test_each_layout_is_recognized(tmp_path: Path, layout: str) -> None:
    layers = [planted(np.random.default_rng(seed), importance=True) for seed in range(2)]
    path = tmp_path / "model.gguf"
    path.write_bytes(model(layers, layout))
    checkpoint = open_checkpoint(path)
    for number, layer in enumerate(layers):
        for name, trits in layer.items():
            actual = checkpoint.load(f"model.layers.{number}.{NAMES[name]}.weight")
            np.testing.assert_array_equal(actual, trits * np.float32(0.5), name)


@pytest.mark.parametrize("layout", ["x86", "rows"])
def test_the_ternary_method_takes_it_without_loss(tmp_path: Path, layout: str) -> None:
    layer = planted(np.random.default_rng(3), importance=True)
    path = tmp_path / "model.gguf"
    path.write_bytes(model([layer], layout))
    checkpoint: Checkpoint = pickle.loads(pickle.dumps(open_checkpoint(path)))  # workers get it pickled
    quantize(checkpoint, tmp_path / "b", QuantizeOptions(method="ternary"), vocab_limit=builder.VOCAB)
    for name, trits in layer.items():
        weight = Bundle.open(tmp_path / "b").weight(f"model.layers.0.{NAMES[name]}.weight")
        assert isinstance(weight, TernaryWeight)
        np.testing.assert_array_equal(weight.trits[0], trits)
        np.testing.assert_array_equal(weight.dense(), trits * np.float32(0.5))


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("layout", ["x86", "arm", "rows"])
def test_ambiguous_weights_are_refused(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(model([planted(np.random.default_rng(seed), importance=False) for seed in range(3)], layout))
    with pytest.raises(
        UnsupportedError, match=r"model\.gguf.*I2_S.*do not show it.* by \d\.\d standard deviations.*TQ2_0"
    ):
        open_checkpoint(path)


def test_a_few_dead_neurons_do_not_decide(tmp_path: Path) -> None:
    """Use other dead neurons going out than coming in, which meet where the file is read in blocks of 64."""
    layer = planted(np.random.default_rng(7), importance=False)
    for column in (40, 170, 300, 430):
        byte, place = column // 128 * 32 + column % 32, column % 128 // 32
        layer["ffn_down"][:, column] = 0
        met = byte // 16 * 64 + place * 16 + byte % 16
        assert met != column
        layer["ffn_gate"][met] = layer["ffn_up"][met] = 0
    path = tmp_path / "model.gguf"
    path.write_bytes(model([layer], "x86"))
    with pytest.raises(UnsupportedError, match="do not show it"):
        open_checkpoint(path)


def test_rows_of_an_odd_number_of_64_columns_have_the_arm_layout(tmp_path: Path) -> None:
    """Check that the shape decides, for any weights."""
    rng = np.random.default_rng(5)
    shapes = {"attn_q": (66, 64), "attn_k": (34, 64), "ffn_gate": (192, 64), "ffn_down": (64, 192)}
    layer = {name: rng.integers(-1, 2, shape, np.int8) for name, shape in shapes.items()}
    tensors = [
        builder.RawTensor(f"blk.0.{name}.weight".encode(), trits.shape[::-1], I2_S, i2_s(trits, "arm"))
        for name, trits in layer.items()
    ]
    path = tmp_path / "model.gguf"
    path.write_bytes(builder.file_bytes(builder.metadata(), tensors))
    assert layout_of(read_header(path)).name == "I2_S of ARM"


@pytest.mark.thorough
def test_the_demo_is_trained_enough_to_tell(tmp_path: Path) -> None:
    bundle = Bundle.open(bundle_path())
    layers = []
    for number in range(3):
        layer = {}
        for name, ours in NAMES.items():
            weight = bundle.weight(f"model.layers.{number}.{ours}.weight")
            assert isinstance(weight, TernaryWeight)
            layer[name] = weight.trits[0]
        layers.append(layer)
    path = tmp_path / "model.gguf"
    path.write_bytes(model(layers, "x86"))
    down = open_checkpoint(path).load("model.layers.1.mlp.down_proj.weight")
    np.testing.assert_array_equal(np.sign(down), layers[1]["ffn_down"])


def test_a_code_without_a_trit_is_damage(tmp_path: Path) -> None:
    data = model([planted(np.random.default_rng(0), importance=True)], "x86")
    path = tmp_path / "model.gguf"
    path.write_bytes(data[:-40] + b"\xff" + data[-39:])
    with pytest.raises(BundleError, match=r"model\.gguf: tensor 'blk\.0\.ffn_down\.weight': a code is 3"):
        open_checkpoint(path)


def test_a_truncated_scale_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(model([planted(np.random.default_rng(0), importance=True)], "arm")[:-32])
    with pytest.raises(BundleError, match="truncated"):
        open_checkpoint(path)
