"""Ternary matrices and norms: what the paths of the accelerator are fed, and what the integer profile makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.compiler.ternary_image import TernaryLayout, pack
from edgedec.ops import Linear
from edgedec.reference.integer_profile.cache import IntegerCache
from edgedec.reference.integer_profile.context import PassContext
from edgedec.reference.integer_profile.numbers import I64, Check, Mantissas, round_shift
from edgedec.reference.integer_profile.ops import linear
from edgedec.reference.integer_profile.ops.quantize_activation import codes_of, normed_scale
from edgedec.reference.integer_profile.ops.rms_norm import root_mean_square, sums_of_squares
from edgedec.reference.integer_profile.values import Form, Scale
from tests.hw.vectors import awkward, to_words

__all__ = ["CHECKED", "Norm", "TernaryMatrix", "floats", "items_of", "quantized", "random_matrix", "some_norm"]

CHECKED = PassContext(
    cache=cast(IntegerCache, None),  # nothing here attends
    visible=np.ones((1, 1), np.bool_),
    positions=np.zeros(1, np.int32),
    embeds=None,
    check=Check(enabled=True),
)
_LINEAR = Linear(name="linear", inputs=("codes", "scale"), outputs=("out",), weights=("w",), biases=(None,))


def floats(scale: Scale) -> list[dict[str, int]]:
    """As payload of ``hw.shapes.scales``."""
    return [{"mantissa": int(a), "exponent": int(e)} for a, e in zip(scale.mantissa, scale.exponent, strict=True)]


def items_of(values: I64) -> list[list[int]]:
    """[n] -> by words of five."""
    return [[lane[0] for lane in word["values"]] for word in to_words(values[None])]


@dataclass(frozen=True, kw_only=True)
class Norm:
    gain: I64
    eps: int


def quantized(x: I64, norm: Norm | None) -> tuple[I64, Scale]:
    if norm is None:
        codes, m16, e = codes_of(x)
        return codes, Scale(mantissa=m16, exponent=np.where(m16 > 0, e - 16, 0))
    codes, m16, e = codes_of(round_shift(x * norm.gain, 15))
    small, big = sums_of_squares(x)
    return codes, normed_scale(m16, e, *root_mean_square(small + norm.eps, big))


def some_norm(rng: np.random.Generator, width: int) -> Norm:
    return Norm(gain=rng.integers(-(1 << 15) + 1, 1 << 15, width), eps=int(rng.choice([0, 1, 1000, 1 << 40])))


@dataclass(frozen=True, kw_only=True)
class TernaryMatrix:
    layout: TernaryLayout
    trits: NDArray[np.int8]
    mantissas: NDArray[np.uint8] | None
    constants: linear.MatrixConstants
    fresh: bool = True

    def image(self) -> list[list[int]]:
        return [[int(byte) for byte in beat] for beat in pack(self.layout, self.trits, self.mantissas)]

    def descriptor(self) -> dict[str, Any]:
        layout, constants = self.layout, self.constants
        assert constants.form is not None
        return {
            "matrix": {
                "fresh": int(self.fresh),
                "words": layout.words,
                "blocks": layout.blocks,
                "planes": layout.planes,
                "group_blocks": layout.group_blocks,
            },
            "drain": {
                "pre_shift": constants.pre_shift,
                "base": constants.base,
                "weight": int(constants.scale.values[0]),
                "wide": int(constants.form.width == 27),
                "bias": int(constants.bias is not None),
            },
        }

    def biases(self) -> list[list[int]]:
        return [] if self.constants.bias is None else items_of(self.constants.bias)

    def times(self, codes: I64, scale: Scale) -> I64:
        """[slots, columns] -> [slots, rows], by the profile."""
        constants = linear.LinearConstants(matrices=(self.constants,))
        (out,) = linear.run(_LINEAR, constants, (codes, scale), CHECKED)
        assert isinstance(out, np.ndarray)
        return out


def random_matrix(
    rng: np.random.Generator, layout: TernaryLayout, *, base: int, wide: bool = True, fresh: bool = True
) -> TernaryMatrix:
    """``base``: the drain shifts by it less the exponent of the codes' scale; clamped to what the drain's settings hold."""
    planes, rows, columns = layout.planes, layout.rows, layout.columns
    trits = rng.integers(-1, 2, (planes, rows, columns)).astype(np.int8)
    mantissas = rng.integers(0, 256, (planes, rows, layout.groups)).astype(np.uint8) if layout.group_size else None
    summed = trits.astype(np.int64)
    if mantissas is not None:
        summed = summed * mantissas.astype(np.int64).repeat(layout.group_size, axis=2)[:, :, :columns]
    weight = summed.sum(axis=0)
    bound = 127 * int(np.abs(weight).sum(axis=1).max())
    pre_shift = max(0, bound.bit_length() - 26)
    width = 27 if wide else 18
    bias = awkward(rng, 1, rows, width)[0] >> 4 if rng.integers(2) else None
    constants = linear.MatrixConstants(
        name="out",
        weight=weight.astype(np.float64),
        groups=mantissas,
        trits=trits,
        scale=Mantissas(
            values=rng.integers(1 << 15, 1 << 16, 1), exponent=-(int(np.clip(base, -256, 255)) + pre_shift + 15)
        ),
        row_shift=0,
        pre_shift=pre_shift,
        bias=bias,
        form=Form(unit=1.0, width=width),
    )
    return TernaryMatrix(layout=layout, trits=trits, mantissas=mantissas, constants=constants, fresh=fresh)
