"""The common parts of matrix products: sizes, buffers, and the end of an output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime.gpu.kernels.codes import code_stride, code_words
from edgedec.runtime.gpu.kernels.kernel import Count, Kernel, spread
from edgedec.runtime.gpu.kernels.source import ShaderBuffer, ShaderOptions, assemble, each_row, shader

__all__ = ["OUTS", "Ending", "Packed", "linear", "product", "tiled", "tiles"]

OUTS = 32  # outputs of a workgroup
_SHARERS = 8  # invocations that share the columns of an output; one for each row of a workgroup


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A matrix, or several with the same columns stacked by rows, in a kernel's layout.

    Members:
        weights: uint32 words, whose number is a multiple of 4.
        scales: 32-bit words.
    """

    weights: NDArray[np.uint32]
    scales: NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of a product, output by output: ``+ bias``, then a soft cap, then ``+ residual``.

    Members:
        bias: True for a buffer ``bias`` [outputs].
        residual: True for a buffer ``residual`` [rows, outputs].
        soft_cap: an output y becomes soft_cap * tanh(y / soft_cap) with the bits of the CPU kernels; None: no cap.
        results: True if the rows are the result rows of the pass, not all of its rows.
    """

    bias: bool = False
    residual: bool = False
    soft_cap: float | None = None
    results: bool = False

    def source(self) -> str:
        """Return the function ``finish`` of a shader."""
        lines = ["fn finish(row: u32, column: u32, product: f32) {", "    if (column >= OUTPUTS) { return; }"]
        lines.append("    var result = product;")
        if self.bias:
            lines.append("    result = add(result, bias[column]);")
        if self.soft_cap is not None:
            lines.append("    result = capped(result, SOFT_CAP);")
        if self.residual:
            lines.append("    result = add(result, residual[row * OUTPUTS + column]);")
        return "\n".join([*lines, "    y[row * OUTPUTS + column] = result;", "}", ""])

    def constants(self) -> dict[str, float]:
        """Return the constants of the function."""
        if self.soft_cap is None:
            return {}
        return {"SOFT_CAP": float(self.soft_cap)}

    def buffers(self) -> list[ShaderBuffer]:
        """Return the buffers of the function, without the output."""
        return [ShaderBuffer(name=name) for name in ("bias", "residual") if getattr(self, name)]


def _sharers(options: ShaderOptions) -> int:
    return 1 if options.compact else _SHARERS


def tiles(outputs: int) -> int:
    """Return the number of workgroups for the outputs of a matrix."""
    return -(-outputs // OUTS)


def tiled(values: NDArray[Any], fill: float = 0) -> NDArray[Any]:
    """Return values [outputs, ...] as [tiles, OUTS, ...], with ``fill`` after the last output."""
    padded = np.full((tiles(len(values)) * OUTS, *values.shape[1:]), fill, values.dtype)
    padded[: len(values)] = values
    return padded.reshape(-1, OUTS, *values.shape[1:])


def linear(
    name: str,
    options: ShaderOptions,
    *,
    sweep: str,
    outputs: int,
    inputs: int,
    ending: Ending,
    constants: Mapping[str, int],
    parts: int = 1,
    before: Sequence[str] = (),
    scale_element: str = "f32",
) -> Kernel:
    """Return a product: (codes, scales, weights, weight_scales, bias?, residual?) -> y [rows, outputs].

    ``sweep`` names the shader with the function ``sweep_ROWS``, and ``parts`` is the number of parts of a sum that an
    invocation makes at a time. ``before`` are further parts of the shader, and ``scale_element`` is the type of the
    elements of ``weight_scales``.
    """
    return product(
        name,
        options,
        sweep=sweep,
        outputs=outputs,
        ending=ending,
        buffers=(
            ShaderBuffer(name="codes", element="vec4<u32>"),
            ShaderBuffer(name="scales"),
            ShaderBuffer(name="weights", element="vec4<u32>"),
            ShaderBuffer(name="weight_scales", element=scale_element),
        ),
        before=("dot", "linear_codes", *before),
        constants={"CODE_WORDS": code_words(inputs), "CODE_STRIDE": code_stride(inputs), **constants},
        parts=parts * _sharers(options),
    )


def product(
    name: str,
    options: ShaderOptions,
    *,
    sweep: str,
    outputs: int,
    ending: Ending,
    buffers: Sequence[ShaderBuffer],
    before: Sequence[str],
    constants: Mapping[str, int],
    parts: int,
) -> Kernel:
    """Return a product whose first buffers are ``buffers``: (..., bias?, residual?) -> y [rows, outputs].

    ``parts`` is the number of parts of a sum that the invocations of an output make at a time.
    """
    sweeps = " else ".join(
        f"if (count <= {rows}u) {{ sweep_{rows}(tile, first, count, lane); }}" for rows in options.row_steps
    )
    if options.compact:
        sweeps = "for (var i = 0u; i < count; i += 1u) { sweep_1(tile, first + i, 1u, lane); }"
    return assemble(
        name,
        options,
        buffers=(*buffers, *ending.buffers(), ShaderBuffer(name="y", access="read_write")),
        parts=(
            "linear_alone" if options.compact else "linear_shared",
            *before,
            *(name for name in ("fma", "exp", "tanh") if ending.soft_cap is not None and name not in before),
            ending.source(),
            *(each_row(shader(sweep), rows) for rows in options.row_steps),
            "linear_main",
        ),
        constants={
            "OUTPUTS": outputs,
            "OUTS": OUTS,
            "SHARERS": _sharers(options),
            "TILES": tiles(outputs),
            "PARTS": parts,
            **constants,
            **ending.constants(),
        },
        functions={
            "WORK_ROWS": "result_count" if ending.results else "row_count",
            "SWEEP": sweeps,
        },
        groups=spread(tiles(outputs), Count(results=1, divisor=8) if ending.results else Count(rows=1, divisor=8)),
    )
