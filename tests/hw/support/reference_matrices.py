"""Draw matrices and norms for the paths of the accelerator, and compute them in the integer profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, connect, flipped
from numpy.typing import NDArray

from edgedec.graph.ops import Linear
from edgedec.hw.compiler import int8_image, ternary_image
from edgedec.hw.compiler.int8_image import Int8Layout
from edgedec.hw.compiler.ternary_image import TernaryLayout
from edgedec.hw.config import ROWS
from edgedec.hw.matrix.mac_array import MacArray, WorkKind
from edgedec.hw.matrix.matrix_path import MatrixPath
from edgedec.reference.integer_profile.cache import IntegerCache
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import I64, Mantissas, WidthCheck, round_shift
from edgedec.reference.integer_profile.ops import linear
from edgedec.reference.integer_profile.ops.quantize_activation import codes_of, normed_scale
from edgedec.reference.integer_profile.ops.rms_norm import root_mean_square, sums_of_squares
from edgedec.reference.integer_profile.values import Form, Logits, Scale
from tests.hw.support.make_vectors import awkward

__all__ = ["CHECKED", "Matrix", "Multiplying", "Norm", "floats", "items_of", "quantized", "random_matrix", "some_norm"]

CHECKED = IntegerPassContext(
    cache=cast(IntegerCache, None),  # attention is not used here
    visible=np.ones((1, 1), np.bool_),
    positions=np.zeros(1, np.int32),
    embeds=None,
    check=WidthCheck(enabled=True),
)
_LINEAR = Linear(name="linear", inputs=("codes", "scale"), outputs=("out",), weights=("w",), biases=(None,))


def floats(scale: Scale) -> list[dict[str, int]]:
    """Return a payload of ``hw.shapes.scales``."""
    return [{"mantissa": int(a), "exponent": int(e)} for a, e in zip(scale.mantissa, scale.exponent, strict=True)]


def items_of(values: I64) -> list[list[int]]:
    """Convert [n] to items of one."""
    return [[value] for value in values.tolist()]


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
class Matrix:
    """Hold a linear's matrix, or two whose rows alternate.

    ``weight`` is trits [planes, rows, columns] or codes [rows, columns]; ``parts`` holds the constants of each, with
    the same width and pre_shift.
    """

    layout: TernaryLayout | Int8Layout
    weight: NDArray[np.int8]
    parts: tuple[linear.MatrixConstants, ...]
    mantissas: NDArray[np.uint8] | None = None
    fresh: bool = True
    tied: bool | None = None  # None: the path has no tied planes

    def image(self) -> list[list[int]]:
        if isinstance(self.layout, Int8Layout):
            packed = int8_image.pack(self.layout, self.weight)
        else:
            packed = ternary_image.pack(self.layout, self.weight, self.mantissas)
        beats: list[list[int]] = packed.tolist()
        return beats

    @property
    def has_rows(self) -> bool:
        return any(
            part.bias is not None or len(part.scale.values) > 1 or np.any(part.row_shift != 0) for part in self.parts
        )

    def descriptor(self) -> dict[str, Any]:
        layout, first = self.layout, self.parts[0]
        ternary = isinstance(layout, TernaryLayout)
        pair = (self.parts * 2)[:2]
        return {
            "matrix": {
                "fresh": int(self.fresh),
                "words": layout.words,
                "blocks": layout.blocks,
                "planes": layout.planes if isinstance(layout, TernaryLayout) else 0,
                "group_blocks": layout.group_blocks if isinstance(layout, TernaryLayout) else 0,
                "int8": int(not ternary),
                **({} if self.tied is None else {"tied": int(self.tied)}),
            },
            "spare": ROWS * layout.words - layout.rows,
            "drain": {
                "pre_shift": first.pre_shift,
                "base": [part.base if part.form else 0 for part in pair],
                "weight": [int(part.scale.values[0]) for part in pair],
                "pair": int(len(self.parts) > 1),
                "rows": int(self.has_rows),
                "logits": int(first.form is None),
                "wide": int(first.form is not None and first.form.width == 27),
            },
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return payloads of ``hw.drain.row_constants``."""
        if not self.has_rows:
            return []
        count = self.layout.rows
        constants = {name: np.zeros(count, np.int64) for name in ("bias", "shift", "weight")}
        for i, part in enumerate(self.parts):
            mine = slice(i, None, len(self.parts))
            constants["bias"][mine] = 0 if part.bias is None else part.bias
            constants["shift"][mine] = part.row_shift
            constants["weight"][mine] = part.scale.values
        items = [items_of(values) for values in constants.values()]
        return [dict(zip(constants, item, strict=True)) for item in zip(*items, strict=True)]

    def times(self, codes: I64, scale: Scale) -> I64:
        """Multiply [slots, columns] -> [slots, rows], by the profile."""
        results = linear.run(_LINEAR, linear.LinearConstants(matrices=self.parts), (codes, scale), CHECKED)
        out = np.zeros((len(codes), self.layout.rows), np.int64)
        for i, value in enumerate(results):
            mine = value.values if isinstance(value, Logits) else value
            assert isinstance(mine, np.ndarray)
            out[:, i :: len(results)] = mine
        return out


def random_matrix(
    rng: np.random.Generator,
    layout: TernaryLayout | Int8Layout,
    *,
    base: int,
    wide: bool = True,
    fresh: bool = True,
    pair: bool = False,
    logits: bool = False,
    per_row: bool = False,
) -> Matrix:
    """Draw a matrix.

    The drain shifts by ``base`` less the exponent of the codes' scale; it is clamped to what the drain's settings hold.
    With ``per_row`` each row has a weight and a shift of its own.
    """
    weight, mantissas, summed = _random_weight(rng, layout)
    bound = 127 * int(np.abs(summed).sum(axis=1).max())
    pre_shift = max(0, bound.bit_length() - 26)
    width = 27 if wide else 18
    parts = []
    for i in range(1 + pair):
        mine = summed[i :: 1 + pair]
        count = len(mine)
        constants_count = count if per_row else 1
        exponent = -(int(np.clip(base + 3 * i, -256, 255)) + pre_shift + 15)
        parts.append(
            linear.MatrixConstants(
                name="out",
                weight=mine.astype(np.float64),
                groups=None,
                trits=None,
                scale=Mantissas(
                    values=rng.integers(1 << (0 if per_row else 15), 1 << 16, constants_count), exponent=exponent
                ),
                row_shift=rng.integers(0, 16, count) if per_row else 0,
                pre_shift=pre_shift,
                bias=awkward(rng, 1, count, width)[0] >> 4 if rng.integers(2) and not logits else None,
                form=None if logits else Form(unit=1.0, width=width),
            )
        )
    return Matrix(layout=layout, weight=weight, mantissas=mantissas, parts=tuple(parts), fresh=fresh)


def _random_weight(
    rng: np.random.Generator, layout: TernaryLayout | Int8Layout
) -> tuple[NDArray[np.int8], NDArray[np.uint8] | None, I64]:
    """Return what is packed, mantissas, and what is summed [rows, columns]."""
    rows, columns = layout.rows, layout.columns
    if isinstance(layout, Int8Layout):
        codes = rng.integers(-127, 128, (rows, columns)).astype(np.int8)
        codes[:: max(3, rows // 3)] = 127
        return codes, None, codes.astype(np.int64)
    trits = rng.integers(-1, 2, (layout.planes, rows, columns)).astype(np.int8)
    summed = trits.astype(np.int64)
    mantissas = None
    if layout.group_size:
        mantissas = rng.integers(0, 256, (layout.planes, rows, layout.groups)).astype(np.uint8)
        summed = summed * mantissas.astype(np.int64).repeat(layout.group_size, axis=2)[:, :, :columns]
    return trits, mantissas, summed.sum(axis=0)


class Multiplying(Component):
    """Combine a MatrixPath with the MacArray that it shares; ``working``: attention has the array in this cycle."""

    def __init__(self, path: MatrixPath, *, beat_bytes: int, slots: int) -> None:
        self._path = path
        self._array = MacArray(lanes=beat_bytes, slots=slots, chunk=beat_bytes // 2)
        members = path.signature.members
        self._outer = [name for name in members if not name.startswith("mac_")]
        super().__init__({**{name: members[name] for name in self._outer}, "working": In(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        path, array = self._path, self._array
        m.submodules.path, m.submodules.array = path, array
        for name in self._outer:
            port, inner = getattr(self, name), getattr(path, name)
            if name in ("error", "idle"):
                m.d.comb += port.eq(inner)
            else:
                connect(m, flipped(port), inner)
        connect(m, path.mac_codes, array.codes)
        connect(m, path.mac_weights, array.weights)
        connect(m, array.sums, path.mac_sums)
        work = array.work.p
        m.d.comb += [
            array.work.valid.eq(self.working),
            work.kind.as_value().eq(WorkKind.SCORES.value),  # type: ignore[attr-defined]
            work["values"].as_value().eq(~path.mac_weights.payload.values.as_value()),
            work.operands.as_value().eq(~0),
        ]
        return m
