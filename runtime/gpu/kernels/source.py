"""Assembly of a kernel's WGSL from the files in ``runtime/gpu/shaders``."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal

import numpy as np

from edgedec.errors import EdgedecError
from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.kernel import MOST_GROUPS, Binding, Groups, Kernel

__all__ = ["ShaderBuffer", "ShaderOptions", "assemble", "each_row", "shader"]

_EACH_ROW = re.compile(r"^( *)#each_row +(.*)$", re.MULTILINE)  # shaders/README.md explains it
_MARKER = re.compile(r"#\S*")  # WGSL itself has no "#"


@dataclass(frozen=True, kw_only=True)
class ShaderOptions:
    """The options that all shaders of a program share.

    Members:
        head: layout of the header of a pass.
        fused: True if the adapter's ``fma`` rounds once; otherwise it is computed in several exact steps.
        packed_dot: True if the compiler has ``dot4I8Packed``.
        compact: True on software drivers. Their compilers take seconds for what a GPU's driver compiles at once, so loops
            stay loops and matrix products have code for one row. They run the few invocations that fill a vector of the CPU
            one after another, and each barrier switches between them, so workgroups are small and share little memory.
    """

    head: HeadLayout
    fused: bool = False
    packed_dot: bool = True
    compact: bool = False

    @property
    def row_steps(self) -> tuple[int, ...]:
        """Numbers of rows for which a matrix product has code of its own."""
        return (1,) if self.compact else (1, 4, 8)

    def lanes(self, usual: int) -> int:
        """Return the invocations of a workgroup, a power of 2 and at least 8, where a GPU has ``usual``."""
        return 8 if self.compact else usual


@dataclass(frozen=True, kw_only=True)
class ShaderBuffer:
    """A storage buffer of a kernel with the type of its elements in WGSL."""

    name: str
    element: str = "f32"
    access: Literal["read", "read_write"] = "read"


@functools.cache
def shader(name: str) -> str:
    """Return the text of ``shaders/NAME.wgsl``."""
    return resources.files("edgedec.runtime.gpu").joinpath("shaders", f"{name}.wgsl").read_text("utf-8")


def each_row(text: str, rows: int) -> str:
    """Return ``text`` for ``rows`` rows at a time.

    A line that begins with ``#each_row`` is repeated for every row, with the row's number in place of ``ROW``; everywhere
    else ``ROWS`` is the number of rows. Sums of several rows are variables of their own, because arrays may not be kept in
    registers. For two rows, ``#each_row sum_ROW += x[ROWu];`` becomes ``sum_0 += x[0u];`` and ``sum_1 += x[1u];``.

    Raises:
        EdgedecError: the text has another marker, or one that does not begin its line.
    """
    repeated = _EACH_ROW.sub(
        lambda line: "\n".join(line[1] + re.sub(r"ROW(?!S|_)", str(row), line[2]) for row in range(rows)), text
    )
    if marker := _MARKER.search(repeated):
        raise EdgedecError(f"a shader has the marker {marker[0]}; it may have #each_row, as the first word of a line")
    return re.sub(r"(?<![A-Z]_)ROWS", str(rows), repeated)


def _literal(value: float | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value}u" if isinstance(value, int) else f"{float(np.float32(value))!r}f"


def assemble(
    name: str,
    options: ShaderOptions,
    *,
    buffers: Sequence[ShaderBuffer],
    parts: Sequence[str],
    groups: Groups,
    constants: Mapping[str, float | int | bool] | None = None,
    functions: Mapping[str, str] | None = None,
) -> Kernel:
    """Return a kernel.

    Args:
        name: name of the kernel.
        options: the program's options.
        buffers: the buffers after the header.
        parts: names of shaders, or whole texts of several lines, in order; the header and float arithmetic come before them.
        groups: workgroups of a dispatch.
        constants: constants of the shaders by name; a float becomes the float32 next to it.
        functions: expressions that stand for names in the parts, besides FOUR, the number of steps of a loop that a compiler
            may unroll.

    Raises:
        EdgedecError: a part has a marker, which ``each_row`` has not replaced.
    """
    everything = (ShaderBuffer(name="head", element="u32"), *buffers)
    declared = [
        f"@group(0) @binding({number}) var<storage, {buffer.access}> {buffer.name}: array<{buffer.element}>;"
        for number, buffer in enumerate(everything)
    ]
    numbers = {**options.head.constants(), "MOST_GROUPS": MOST_GROUPS, **(constants or {})}
    written = [f"const {key} = {_literal(value)};" for key, value in numbers.items()]
    choices = {"fma": "fma_native" if options.fused else "fma_exact"}
    choices["dot"] = "dot_packed" if options.packed_dot else "dot_shifts"
    text = "\n".join(part if "\n" in part else shader(choices.get(part, part)) for part in ("head", "float", *parts))
    if marker := _MARKER.search(text):
        raise EdgedecError(f"{name} has the marker {marker[0]}; only each_row replaces one, #each_row, in a part")
    names = {"FOUR": "(4u ^ zero_word)" if options.compact else "4u", **(functions or {})}
    for placeholder, function in names.items():
        text = re.sub(rf"\b{placeholder}\b", function, text)
    return Kernel(
        name=name,
        source="\n".join([*declared, *written, text]),
        bindings=tuple(Binding(name=buffer.name, access=buffer.access) for buffer in everything),
        groups=groups,
    )
