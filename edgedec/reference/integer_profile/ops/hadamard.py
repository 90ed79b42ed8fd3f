"""Walsh-Hadamard transform of blocks of columns as sums without a rounding; the next quantizer shifts them once.

An embedding's transform back gives the residual, whose unit is fixed, so it ends with a shift of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgedec.graph.ops import Hadamard, Linear, QuantizeActivation
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import I64, WIDE_BITS, round_shift, saturate
from edgedec.reference.integer_profile.site import Site, unsupported
from edgedec.reference.integer_profile.values import Form, Normed, Value

__all__ = ["HadamardConstants", "block_sums", "prepare", "run"]


@dataclass(frozen=True, kw_only=True)
class HadamardConstants:
    """The constants of a transform.

    Members:
        signs: 1 and -1, [width].
        width: bits of the sums, those of the input and log2(block) more.
        shift: shift of the sums to the residual's unit; 0 if a quantizer reads them.
    """

    signs: I64
    width: int
    shift: int


def prepare(op: Hadamard, site: Site) -> HadamardConstants:
    """Compute the constants.

    Raises:
        UnsupportedError: a sign is not 1 or -1, the input is not s27, a reader is not a quantizer, or an embedding is
            transformed back by blocks whose root is not a power of two.
    """
    source, steps = site.form(op.inputs[0]), op.block.bit_length() - 1
    if source.width != WIDE_BITS:
        raise unsupported(op, f"its input has {source.width} bits, not the {WIDE_BITS} of a norm, attention or a gate")
    signs = np.ones(site.width(op.inputs[0]), np.int64)
    if op.signs:
        stored = site.weights(op.signs).dense()
        if not (np.abs(stored) == 1).all():
            raise unsupported(op, f"{op.signs} holds other values than 1 and -1")
        signs = stored.astype(np.int64)
    if not op.inverse:
        # A linear that reads the transform directly is kept as float, and raises its own error.
        readers = site.readers(op.outputs[0])
        others = {reader.kind for reader in readers if not isinstance(reader, QuantizeActivation | Linear)}
        if others:
            raise unsupported(op, f"{', '.join(sorted(others))} reads it; only a quantizer of a linear's input can")
        site.set_form(op, Form(unit=source.unit * op.block**-0.5, width=WIDE_BITS + steps))
        return HadamardConstants(signs=signs, width=WIDE_BITS + steps, shift=0)
    if source != site.residual or steps % 2:
        raise unsupported(
            op,
            f"it transforms {op.inputs[0]} back by blocks of {op.block}; the profile has that only for an embedding and "
            "blocks of 4, 16, 64, 256, ... columns, whose root is a power of two",
        )
    site.set_form(op, site.residual)
    return HadamardConstants(signs=signs, width=WIDE_BITS + steps, shift=steps // 2)


def block_sums(x: I64, block: int) -> I64:
    """Return the transform without its root, s(27 + log2(block)) [n, width], of x s27."""
    out, distance = x, 1
    while distance < block:
        pairs = out.reshape(-1, 2, distance)
        out = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        distance *= 2
    return out.reshape(x.shape)


def run(
    op: Hadamard, constants: HadamardConstants, inputs: Sequence[Value], context: IntegerPassContext
) -> tuple[Value, ...]:
    (x,) = inputs
    name = op.outputs[0]
    if op.inverse:
        assert isinstance(x, np.ndarray)
        sums = context.signed(f"{name}.sums", block_sums(x, op.block), constants.width)
        turned = saturate(round_shift(sums, constants.shift), WIDE_BITS) * constants.signs
        return (context.signed(name, turned, WIDE_BITS),)
    y = x.y if isinstance(x, Normed) else x
    assert isinstance(y, np.ndarray)
    sums = context.signed(name, block_sums(y * constants.signs, op.block), constants.width)
    return (replace(x, y=sums) if isinstance(x, Normed) else sums,)
