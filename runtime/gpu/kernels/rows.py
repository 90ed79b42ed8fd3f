"""Kernels on rows of float32 activations: norms, gated activations, quantization to int8, sums and selections."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.errors import EdgedecError
from edgedec.graph.ops import Activation
from edgedec.runtime.gpu.kernels.codes import code_stride, code_words
from edgedec.runtime.gpu.kernels.kernel import Count, Groups, Kernel, spread
from edgedec.runtime.gpu.kernels.source import ShaderBuffer, ShaderOptions, assemble

__all__ = [
    "MOST_BLOCK",
    "Columns",
    "add",
    "gate",
    "hadamard",
    "norm",
    "quantize",
    "select",
]

_LANES = 256  # invocations of a workgroup; at least 8, a power of 2
MOST_BLOCK = 4096  # columns of a block that fit the workgroup memory that every adapter has, 16 KiB
_NORM_CHUNK = 2048  # values that a norm copies to workgroup memory at a time
_EACH = Count(rows=1)  # a workgroup for each row


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a value inside of a wider matrix: the first, and the floats from one row to the next."""

    offset: int
    stride: int

    def __post_init__(self) -> None:
        if not 0 <= self.offset < self.stride:
            raise EdgedecError(f"columns must begin inside of their rows: {self}")


def _constants(
    options: ShaderOptions, width: int, x: Columns | None, up: Columns | None = None, heads: int = 1
) -> dict[str, int]:
    x, up = (at or Columns(offset=0, stride=width * heads) for at in (x, up))
    return {
        "WIDTH": width,
        "LANES": options.lanes(_LANES if width > 64 else 64),
        "NORM_CHUNK": min(_NORM_CHUNK, -(-width // 16) * 16),
        "X_STRIDE": x.stride,
        "X_OFFSET": x.offset,
        "UP_STRIDE": up.stride,
        "UP_OFFSET": up.offset,
    }


def _normed(options: ShaderOptions) -> tuple[str, str]:
    """Return the parts of a shader that make a row's values its norm."""
    return ("value_normed", "norm_sums_direct" if options.compact else "norm_sums_staged")


def norm(options: ShaderOptions, *, width: int, eps: float, heads: int = 1, x: Columns | None = None) -> Kernel:
    """Return the RMS norm of each ``width`` columns: (x [n, heads * width], gain [width]) -> out [n, heads * width].

    ``gain`` has the operation's offset added already, in float32.
    """
    return assemble(
        "norm",
        options,
        buffers=(ShaderBuffer(name="x"), ShaderBuffer(name="gain"), ShaderBuffer(name="out", access="read_write")),
        parts=("fma", "source_x", *_normed(options), "end_store"),
        constants={**_constants(options, width, x, heads=heads), "EPS": float(eps), "OUT_STRIDE": heads * width},
        groups=Groups(x=Count(constant=heads), z=_EACH),
    )


def quantize(
    options: ShaderOptions,
    *,
    width: int,
    x: Columns | None = None,
    activation: Activation | None = None,
    up: Columns | None = None,
    eps: float | None = None,
) -> Kernel:
    """Return (x [n, width], up?, gain?) -> codes [n] rows of ``codes.code_stride`` words, scales [n].

    With ``activation``, the rows are those of ``gate``, made of x and ``up``; with ``eps``, their ``norm`` is quantized.
    """
    gated, normed = activation is not None, eps is not None
    return assemble(
        "_".join([*(["gate"] if gated else []), *(["norm"] if normed else []), "quantize"]),
        options,
        buffers=(
            ShaderBuffer(name="x"),
            *([ShaderBuffer(name="up")] if gated else []),
            *([ShaderBuffer(name="gain")] if normed else []),
            ShaderBuffer(name="codes", element="u32", access="read_write"),
            ShaderBuffer(name="scales", access="read_write"),
        ),
        parts=(
            "fma",
            "dot",
            *(("exp", "source_gated") if gated else ("source_x",)),
            *(_normed(options) if normed else ("value_plain",)),
            "codes",
            "end_codes",
        ),
        constants={
            **_constants(options, width, x, up),
            "CODE_WORDS": code_words(width),
            "CODE_STRIDE": code_stride(width),
            **({} if eps is None else {"EPS": float(eps)}),
        },
        functions={} if activation is None else {"ACTIVATION": activation},
        groups=Groups(x=Count(constant=1), z=_EACH),
    )


def gate(
    options: ShaderOptions,
    *,
    width: int,
    activation: Activation,
    gate: Columns | None = None,
    up: Columns | None = None,
) -> Kernel:
    """Return (gate, up [n, width]) -> activation(gate) * up, [n, width]."""
    return assemble(
        "gate",
        options,
        buffers=(ShaderBuffer(name="x"), ShaderBuffer(name="up"), ShaderBuffer(name="out", access="read_write")),
        parts=("fma", "exp", "source_gated", "end_each"),
        constants={**_constants(options, width, gate, up), "OUT_STRIDE": width},
        functions={"ACTIVATION": activation},
        groups=spread(-(-width // _LANES), _EACH),
    )


def hadamard(
    options: ShaderOptions, *, width: int, block: int, inverse: bool = False, x: Columns | None = None
) -> Kernel:
    """Return the Walsh-Hadamard transform of each block of columns: (x [n, width], signs [width]) -> out [n, width]."""
    blocks = width // block
    return assemble(
        "hadamard",
        options,
        buffers=(ShaderBuffer(name="x"), ShaderBuffer(name="signs"), ShaderBuffer(name="out", access="read_write")),
        parts=("source_x", "end_hadamard"),
        constants={
            **_constants(options, block, x, heads=blocks),
            "OUT_STRIDE": width,
            "INVERSE": inverse,
            "FACTOR": block**-0.5,
        },
        groups=Groups(x=Count(constant=blocks), z=_EACH),
    )


def add(options: ShaderOptions, *, width: int, a: Columns | None = None, b: Columns | None = None) -> Kernel:
    """Return (a, b [n, width]) -> a + b, [n, width]."""
    return assemble(
        "add",
        options,
        buffers=(ShaderBuffer(name="x"), ShaderBuffer(name="up"), ShaderBuffer(name="out", access="read_write")),
        parts=("source_sum", "end_each"),
        constants={**_constants(options, width, a, b), "OUT_STRIDE": width},
        groups=spread(-(-width // _LANES), _EACH),
    )


def select(options: ShaderOptions, *, width: int) -> Kernel:
    """Return x [n, width] -> the result rows, [r, width]."""
    return assemble(
        "select",
        options,
        buffers=(ShaderBuffer(name="x"), ShaderBuffer(name="out", access="read_write")),
        parts=("source_selected", "end_each"),
        constants={**_constants(options, width, None), "OUT_STRIDE": width},
        groups=spread(-(-width // _LANES), Count(results=1)),
    )
