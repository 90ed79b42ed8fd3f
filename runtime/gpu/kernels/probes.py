"""A kernel that shows how an adapter computes, by which a program chooses its ``ShaderOptions``."""

from __future__ import annotations

from edgedec.runtime.gpu.kernels.kernel import Count, Groups, Kernel
from edgedec.runtime.gpu.kernels.source import ShaderBuffer, ShaderOptions, assemble

__all__ = ["arithmetic"]

_MAIN = """
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) place: vec3<u32>) {
    start();
    let i = place.x;
    if (i >= COUNT) { return; }
    out[3u * i] = sealed(fma(x[3u * i], x[3u * i + 1u], x[3u * i + 2u]));
    out[3u * i + 1u] = mul(x[3u * i], x[3u * i + 1u]);
    out[3u * i + 2u] = add(x[3u * i], x[3u * i + 2u]);
}
"""


def arithmetic(options: ShaderOptions, *, count: int) -> Kernel:
    """Return x [count, 3] -> out [count, 3]: of three numbers a, b and c, the adapter's own fma(a, b, c), a * b and a + c.

    ``ShaderOptions.fused`` may be True only if every fma is that of the CPU. Where products and sums differ, the adapter
    turns subnormal numbers to 0, or does worse.
    """
    return assemble(
        "arithmetic",
        options,
        buffers=(ShaderBuffer(name="x"), ShaderBuffer(name="out", access="read_write")),
        parts=(_MAIN,),
        constants={"COUNT": count},
        groups=Groups(x=Count(constant=-(-count // 64))),
    )
