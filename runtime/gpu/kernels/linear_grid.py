"""Products with matrices whose levels are evenly spaced: int4, and ternary planes with tied scales.

Scales are 32-bit words for each output of a tile. Planes have a float32 for each group, [tile][group][output]. Int4 has two
float16 in a word, [tile][group / 2][output]. With ``offset`` a word has the steps of scale and minimum of two groups in four
bytes, and words with the two float16 factors follow, [tile][group / 8][output].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.linear import Ending, Packed, linear, tiled
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.schemes import Int4Scheme, TernaryScheme, fold

__all__ = ["linear_grid", "pack_grid"]

_COLUMNS = 32  # columns of 16 bytes
_SCALES = {
    "float": """
fn scale_of(tile: u32, group: u32, out: u32) -> f32 {
    return bitcast<f32>(weight_scales[(tile * GROUPS + group) * OUTS + out]);
}
fn minimum_of(tile: u32, group: u32, out: u32) -> f32 { return 0.0; }
""",
    "half": """
fn scale_of(tile: u32, group: u32, out: u32) -> f32 {
    let word = weight_scales[(tile * ((GROUPS + 1u) / 2u) + group / 2u) * OUTS + out];
    return from_half((word >> (16u * (group % 2u))) & 0xffffu);
}
fn minimum_of(tile: u32, group: u32, out: u32) -> f32 { return 0.0; }
""",
    "offset": """
fn stepped(tile: u32, group: u32, out: u32, part: u32) -> f32 {
    let steps = weight_scales[(tile * ((GROUPS + 1u) / 2u) + group / 2u) * OUTS + out];
    let place = TILES * ((GROUPS + 1u) / 2u) * OUTS + (tile * ((GROUPS + 7u) / 8u) + group / 8u) * OUTS + out;
    let factor = from_half((weight_scales[place] >> (16u * part)) & 0xffffu);
    return mul(factor, f32((steps >> (16u * (group % 2u) + 8u * part)) & 0xffu));
}
fn scale_of(tile: u32, group: u32, out: u32) -> f32 { return stepped(tile, group, out, 0u); }
fn minimum_of(tile: u32, group: u32, out: u32) -> f32 { return stepped(tile, group, out, 1u); }
""",
}


def _form(scheme: Int4Scheme | TernaryScheme) -> tuple[str, int, int]:
    """Return form of the scales, bits of a code, and the code of the level 0.

    Raises:
        UnsupportedError: the planes are not tied.
    """
    if isinstance(scheme, Int4Scheme):
        return ("offset", 4, 0) if scheme.offset else ("half", 4, 8)
    if not scheme.tied:
        raise UnsupportedError(f"{scheme} has planes with free scales; linear_ternary computes them")
    return ("float", 4, 8) if scheme.planes == 2 else ("float", 5, 13)


def pack_grid(
    scheme: Int4Scheme | TernaryScheme, inputs: int, matrices: Sequence[Mapping[str, NDArray[Any]]]
) -> Packed:
    """Convert the stored parts of matrices with equal columns.

    Raises:
        UnsupportedError: the scheme has no evenly spaced levels.
        BundleError: a code is not a trit.
    """
    form, bits, zero = _form(scheme)
    blocks = -(-inputs // _COLUMNS)
    levels = np.concatenate([_levels(scheme, parts["codes"], inputs, zero) for parts in matrices])
    wide = np.zeros((len(levels), blocks * _COLUMNS), np.uint8)
    wide[:, :inputs] = levels
    fours = tiled(wide)
    tile, outs = fours.shape[:2]
    fours = fours.reshape(tile, outs, blocks, 8, 4)  # [tile, out, block, four columns, column]
    nibbles = (fours[..., 0::2, :] & 15) | (fours[..., 1::2, :] & 15) << 4
    words = nibbles.reshape(tile, outs, blocks, 16).view("<u4").transpose(0, 2, 1, 3).reshape(-1)
    if bits == 5:
        high = np.bitwise_or.reduce((fours >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=3)
        padded = np.zeros((tile, outs, -(-blocks // 4) * 4), np.uint32)
        padded[..., :blocks] = np.ascontiguousarray(high).view("<u4")[..., 0]
        words = np.concatenate([words, padded.reshape(tile, outs, -1, 4).transpose(0, 2, 1, 3).reshape(-1)])
    return Packed(weights=words.astype(np.uint32), scales=_scales(form, matrices))


def _levels(scheme: Int4Scheme | TernaryScheme, codes: NDArray[np.uint8], inputs: int, zero: int) -> NDArray[np.uint8]:
    """Return the codes uint8 [outputs, inputs]."""
    if isinstance(scheme, Int4Scheme):
        return scheme.unpack(codes)[:, :inputs]
    return (fold(scheme.unpack("matrix", codes, inputs)) + np.int8(zero)).view(np.uint8)


def _scales(form: str, matrices: Sequence[Mapping[str, NDArray[Any]]]) -> NDArray[np.uint32]:
    """Return the words of the scales."""
    if form == "offset":
        steps = _words(np.concatenate([parts["steps"] for parts in matrices]), 2)
        return np.concatenate([steps, _words(np.concatenate([parts["factors"] for parts in matrices]), 1)])
    if form == "half":
        return _words(np.concatenate([parts["scale"] for parts in matrices]), 2)
    return _words(np.concatenate([parts["scale"][0] for parts in matrices]), 1)


def _words(values: NDArray[Any], at_once: int) -> NDArray[np.uint32]:
    """Return values [outputs, groups, ...], of which ``at_once`` groups make a word, as words [tile][word][output]."""
    padded = np.zeros((len(values), -(-values.shape[1] // at_once) * at_once, *values.shape[2:]), values.dtype)
    padded[:, : values.shape[1]] = values
    words = padded.reshape(len(values), -1).view("<u4").astype(np.uint32)
    return np.ascontiguousarray(tiled(words).transpose(0, 2, 1)).reshape(-1)


def linear_grid(
    options: ShaderOptions,
    *,
    outputs: int,
    inputs: int,
    scheme: Int4Scheme | TernaryScheme,
    ending: Ending | None = None,
) -> Kernel:
    """Return the product with a matrix of ``pack_grid``: (codes, scales, weights, weight_scales, ...) -> y.

    It reads ``outputs * inputs * bits / 8`` bytes of codes for each 8 rows (bits: 4, and 5 for three planes), and per group
    and output 4 bytes of scales, 2 with int4, and 2.5 with its offset.

    Raises:
        UnsupportedError: the scheme has no evenly spaced levels.
    """
    form, bits, zero = _form(scheme)
    return linear(
        "linear_grid",
        options,
        sweep="linear_grid",
        outputs=outputs,
        inputs=inputs,
        ending=ending or Ending(),
        constants={
            "BLOCKS": -(-inputs // _COLUMNS),
            "CODE_BITS": bits,
            "GROUP": scheme.group_size,
            "GROUPS": -(-inputs // scheme.group_size),
            "OFFSET": form == "offset",
        },
        parts=2 if form == "offset" else 1,
        before=("half", f"const ZERO = {zero};\n", _SCALES[form], "linear_grid_high"),
        scale_element="u32",
    )
