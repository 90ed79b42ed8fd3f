"""Undo what llama.cpp's converter does to the gated delta nets of Qwen 3.5 (architecture ``qwen35``).

A group of value heads shares a key head. Hugging Face stores the heads group after group; the converter stores the first
head of each group, then the second of each, and so on, in every tensor that has rows, columns or values for these heads.
The decay is stored as -exp(A_log), and the kernels of the convolution without their middle dimension of 1. PrismML's
rotated files fold ``ssm_out`` in Hugging Face's order if ``prism.hadamard.gdn_v_grouped`` is true.

Source: ``conversion/qwen.py`` and ``models/qwen35.cpp`` of llama.cpp; ``llama-model.cpp`` of PrismML's for the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.gguf.hadamard import PREFIX, Rotations
from edgedec.quantize.readers.gguf.header import GgufTensor
from edgedec.quantize.readers.gguf.keys import ArchitectureKeys
from edgedec.quantize.readers.gguf.names import layer_part

__all__ = ["DECAY", "KERNELS", "STEP", "DeltaNet", "HeadOrder", "decay_log", "delta_net_keys"]

DECAY, KERNELS, STEP = "ssm_a", "ssm_conv1d.weight", "ssm_dt.bias"
_OUT = "ssm_out.weight"
_FLOATS = ("F32", "F16", "BF16")
_FULL, _LINEAR = "full_attention", "linear_attention"
_PERIOD = 4  # llama.cpp's default distance, in layers, between layers with attention


def delta_net_keys(reader: ArchitectureKeys, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the configuration that describe the delta nets and the kinds of layers.

    Layers that guess further tokens are the last of ``block_count``; they are not counted.

    Raises:
        BundleError: a size is missing, or sizes do not divide.
    """
    path, name = reader.header.path, reader.name
    blocks, guessing = config["num_hidden_layers"], reader.integer("nextn_predict_layers", 0, least=0)
    if guessing >= blocks:
        raise BundleError(f"{path}: {name}.nextn_predict_layers {guessing} leaves none of {name}.block_count {blocks}")
    layers = blocks - guessing
    inner, heads = reader.integer("ssm.inner_size"), reader.integer("ssm.time_step_rank")
    key_heads = reader.integer("ssm.group_count")
    for key, value, divisor_key, divisor in (
        ("inner_size", inner, "time_step_rank", heads),
        ("time_step_rank", heads, "group_count", key_heads),
    ):
        if value % divisor:
            raise BundleError(
                f"{path}: {name}.ssm.{key} {value} is not a multiple of {name}.ssm.{divisor_key} {divisor}"
            )
    recurrent = reader.flags("attention.recurrent_layers", layers)
    if recurrent is None:
        period = reader.integer("full_attention_interval", _PERIOD)
        recurrent = tuple((layer + 1) % period != 0 for layer in range(layers))
    return {
        "num_hidden_layers": layers,
        "layer_types": [_LINEAR if one else _FULL for one in recurrent[:layers]],
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": reader.integer("ssm.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_conv_kernel_dim": reader.integer("ssm.conv_kernel"),
    }


@dataclass(frozen=True, kw_only=True)
class HeadOrder:
    """The order of a tensor's value heads, which ``apply`` changes from llama.cpp's to Hugging Face's.

    Members:
        groups: key heads.
        each: value heads of a group.
        first: rows before those of the heads.
        columns: the heads are columns, ``width`` for each head, not rows.
    """

    groups: int
    each: int
    first: int = 0
    columns: bool = False
    width: int = 1

    def apply(self, values: NDArray[Any]) -> None:
        """Reorder, in place, a tensor [rows, ...], or [rows, n] where n is a multiple of the heads if they are columns."""
        if self.columns:
            columns = values.reshape(len(values), self.each, self.groups, -1)
            values[...] = columns.swapaxes(1, 2).reshape(values.shape)  # reshape copies
        else:
            rows = values[self.first :]
            heads = rows.reshape(self.each, self.groups, -1)
            rows[...] = heads.swapaxes(0, 1).reshape(rows.shape)


@dataclass(frozen=True, kw_only=True)
class DeltaNet:
    """The delta nets of a file; ``config`` has the keys of ``delta_net_keys``."""

    config: Mapping[str, Any]
    rotations: Rotations | None

    def order(self, tensor: GgufTensor) -> HeadOrder | None:
        """Return the order of a tensor's value heads, or None if it has none or the order is Hugging Face's.

        Raises:
            BundleError: a tensor of a delta net has another shape, or the layer has attention.
            UnsupportedError: it is folded in llama.cpp's order, or the decay is of a quantized type.
        """
        layer, part = layer_part(tensor.name) or (0, "")
        config = self.config
        heads, groups = config["linear_num_value_heads"], config["linear_num_key_heads"]
        dim, hidden = config["linear_value_head_dim"], config["hidden_size"]
        first, values = 2 * groups * config["linear_key_head_dim"], heads * dim
        shapes: dict[str, tuple[int, ...]] = {
            "attn_qkv.weight": (first + values, hidden),
            "attn_gate.weight": (values, hidden),
            "ssm_beta.weight": (heads, hidden),
            "ssm_alpha.weight": (heads, hidden),
            KERNELS: (first + values, config["linear_conv_kernel_dim"]),
            STEP: (heads,),
            DECAY: (heads,),
            "ssm_norm.weight": (dim,),
            _OUT: (hidden, values),
        }
        shape = shapes.get(part)
        if shape is None:
            return None
        kinds = config["layer_types"]
        if layer >= len(kinds) or kinds[layer] != _LINEAR:
            raise BundleError(
                f"{tensor.path}: tensor {tensor.name!r} belongs to a gated delta net, and by the metadata there is none in "
                f"layer {layer}"
            )
        if tensor.shape != shape:
            raise BundleError(
                f"{tensor.path}: tensor {tensor.name!r} has the shape {tensor.shape}, and the metadata make it {shape}"
            )
        if part == DECAY and tensor.kind.name not in _FLOATS:
            raise UnsupportedError(
                f"{tensor.path}: tensor {tensor.name!r} is {tensor.kind.name}; its logarithm is taken, which needs a float "
                f"type: save it as {_FLOATS[0]}"
            )
        if groups in (1, heads) or part == "ssm_norm.weight":  # one order alone, or the same values for all heads
            return None
        order = HeadOrder(groups=groups, each=heads // groups, first=first if shape[0] == first + values else 0)
        return self._columns(tensor, order, dim) if part == _OUT else order

    def _columns(self, tensor: GgufTensor, rows: HeadOrder, dim: int) -> HeadOrder | None:
        if self.rotations is not None and tensor.name in self.rotations.folded:
            if not self.rotations.grouped:  # heads cannot be exchanged in columns that a rotation has mixed
                raise UnsupportedError(
                    f"{tensor.path}: tensor {tensor.name!r} is folded in llama.cpp's order of value heads, and without "
                    f"{PREFIX}gdn_v_grouped the order cannot be undone; fold the weights in the order of the checkpoint, "
                    "or leave this one out"
                )
            return None
        return HeadOrder(groups=rows.groups, each=rows.each, columns=True, width=dim)


def decay_log(values: NDArray[Any], where: str) -> NDArray[np.float32]:
    """Return A_log [heads] of a stored decay, -exp(A_log).

    The logarithm is taken in float64 and rounded to float32. A float32 decay has a relative error of 2^-24, so A_log has an
    absolute error of about 6e-8 besides its own rounding.

    Raises:
        BundleError: a value is NaN, infinite or not negative, so that the state would not decay.
    """
    wide = values.astype(np.float64)
    wrong = ~np.isfinite(wide) | (wide >= 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise BundleError(
            f"{where}: value {at} is {wide[at]:g}, and a decay must be finite and negative; the file is damaged"
        )
    return np.log(-wide).astype(np.float32)
