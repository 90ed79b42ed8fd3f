"""Measure an adapter's arithmetic: whether its fma has one rounding, and whether it keeps subnormal numbers.

The kernels work on any adapter that rounds sums, differences and products correctly, which WebGPU requires. The rest is
measured once for each device with inputs on which the possible answers differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError
from edgedec.runtime.gpu.device import GpuDevice
from edgedec.runtime.gpu.kernels.codes import code_stride
from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.rows import norm_quantize
from edgedec.runtime.gpu.kernels.source import ShaderOptions

__all__ = ["Arithmetic", "ArithmeticCases", "arithmetic", "arithmetic_cases", "run_once", "sample_pipelines"]

# a * b + c of the inputs; the same with a barrier between the roundings; a + b; a - b; a * b.
_SOURCE = """
@group(0) @binding(0) var<storage, read> zero: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
fn sealed(v: f32) -> f32 { return bitcast<f32>(bitcast<u32>(v) ^ zero[0]); }
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (at.x >= arrayLength(&x)) { return; }
  let v = x[at.x];
  y[5u * at.x] = fma(v.x, v.y, v.z);
  y[5u * at.x + 1u] = sealed(sealed(v.x * v.y) + v.z);
  y[5u * at.x + 2u] = v.x + v.y;
  y[5u * at.x + 3u] = v.x - v.y;
  y[5u * at.x + 4u] = v.x * v.y;
}
"""


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The arithmetic of a device.

    Members:
        fused: True if fma has one rounding; otherwise kernels compute it from integers.
        subnormals: True if subnormal numbers are kept; otherwise results equal the CPU's up to ties of numbers below 1e-38.
    """

    fused: bool
    subnormals: bool


def run_once(
    device: GpuDevice, name: str, source: str, arrays: Sequence[NDArray[Any]], access: Sequence[str], groups: int
) -> NDArray[np.uint8]:
    """Run a kernel once over buffers that are made of ``arrays``, and return what is in the last one then."""
    usage = device.usages.STORAGE | device.usages.COPY_SRC | device.usages.COPY_DST
    pipeline = device.pipeline(name, source, access)
    buffers = [device.buffer(name, array.nbytes, usage) for array in arrays]
    with device.naming(f"the test {name}"):
        for buffer, array in zip(buffers, arrays, strict=True):
            device.raw.queue.write_buffer(buffer, 0, array)
        group = device.raw.create_bind_group(
            layout=pipeline.layout,
            entries=[{"binding": at, "resource": {"buffer": buffer}} for at, buffer in enumerate(buffers)],
        )
        encoder = device.raw.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline.raw)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(groups)
        compute.end()
        device.raw.queue.submit([encoder.finish()])
        result = np.frombuffer(device.raw.queue.read_buffer(buffers[-1]), np.uint8)
    for buffer in buffers:
        buffer.destroy()
    return result


@dataclass(frozen=True, kw_only=True)
class ArithmeticCases:
    """Inputs on which the possible answers of an adapter differ.

    Members:
        source: shader whose bindings are zeros uint32 [4], the inputs and the results.
        inputs: float32 [n, 4].
        results: float32 [n, 5], correctly rounded: fma, a product and a sum, a sum, a difference, a product.
        normal: number of cases without subnormal numbers, which come first.
    """

    source: str
    inputs: NDArray[np.float32]
    results: NDArray[np.float32]
    normal: int


@cache
def arithmetic_cases() -> ArithmeticCases:
    """Return the cases of ``arithmetic``."""
    rng, count = np.random.default_rng(5), 192
    normal = rng.standard_normal((count, 4)).astype(np.float32)
    normal[:, 2] = -normal[:, 0] * normal[:, 1] * (1 + rng.choice([0, 2**-22, 2**-12], count)).astype(np.float32)
    tiny = (normal[:64] * np.float32(1e-20)).astype(np.float32)
    tiny[:, 2] = rng.standard_normal(64).astype(np.float32) * np.float32(1e-40)
    x = np.ascontiguousarray(np.concatenate([normal, tiny]))
    a, b, c = (x[:, column] for column in range(3))
    exact = a.astype(np.float64) * b  # 48 bits, so the sum below is rounded once more only where it is shorter than 53
    fused = _round_sum(exact, c)
    right = np.stack([fused, a * b + c, a + b, a - b, a * b], 1)
    return ArithmeticCases(source=_SOURCE, inputs=x, results=right, normal=count)


def sample_pipelines(device: GpuDevice) -> int:
    """Compile and run a few kernels of a usual size, and return their number."""
    options = ShaderOptions(head=HeadLayout(rows=1, results=1, blocks=1))
    widths = (64, 128, 192, 256)
    for width in widths:
        kernel = norm_quantize(options, width=width, eps=1e-5)
        words = (options.head.words, width, width, code_stride(width), 1)
        arrays = [np.zeros(count, np.uint32) for count in words]
        run_once(device, kernel.name, kernel.source, arrays, [binding.access for binding in kernel.bindings], 1)
    return len(widths)


@cache
def arithmetic(device: GpuDevice) -> Arithmetic:
    """Measure the arithmetic of a device, once.

    Raises:
        DeviceError: sums or products are not rounded correctly, so that no result of the device would be exact.
    """
    cases = arithmetic_cases()
    right, normal = cases.results, cases.normal
    arrays = [np.zeros(4, np.uint32), cases.inputs, np.zeros(right.size, np.float32)]
    result = run_once(device, "arithmetic", cases.source, arrays, ["read", "read", "read_write"], len(right) // 64)
    y = result.view(np.float32).reshape(right.shape)
    same = y.view(np.uint32) == right.view(np.uint32)
    if not same[:normal, 1:].all():
        raise DeviceError(
            f"device gpu: {device.adapter.label} does not round float32 sums and products correctly; update its driver, or "
            "use --device cpu"
        )
    return Arithmetic(fused=bool(same[:normal, 0].all()), subnormals=bool(same[normal:, 1:].all()))


def _round_sum(product: NDArray[np.float64], addend: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return product + addend, rounded once to float32. Source: 2Sum and rounding to odd (Boldo and Melquiond, 2008)."""
    second = addend.astype(np.float64)
    total = product + second
    part = total - product
    error = (product - (total - part)) + (second - part)
    odd = total.view(np.int64) & 1
    toward = np.where((error != 0) & (odd == 0), np.where((error > 0) == (total > 0), 1, -1), 0)
    rounded: NDArray[np.float32] = (total.view(np.int64) + toward).view(np.float64).astype(np.float32)
    return rounded
