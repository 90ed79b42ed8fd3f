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
from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.probes import arithmetic as arithmetic_kernel
from edgedec.runtime.gpu.kernels.rows import quantize
from edgedec.runtime.gpu.kernels.source import ShaderOptions

__all__ = ["Arithmetic", "ArithmeticCases", "arithmetic", "arithmetic_cases", "run_once", "sample_pipelines"]

_HEAD = HeadLayout(rows=1, results=1, blocks=1)
_NORMAL = 192  # triples of numbers that are not tiny


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The arithmetic of a device.

    Members:
        fused: True if fma has one rounding; otherwise kernels compute it in several exact steps.
        subnormals: True if subnormal numbers are kept; otherwise results equal the CPU's up to ties of numbers below 1e-38.
    """

    fused: bool
    subnormals: bool


def run_once(device: GpuDevice, kernel: Kernel, arrays: Sequence[NDArray[Any]], groups: int) -> NDArray[np.uint8]:
    """Run a kernel once over buffers that are made of ``arrays``, and return what is in the last one then."""
    usage = device.usages.STORAGE | device.usages.COPY_SRC | device.usages.COPY_DST
    pipeline = device.pipeline(kernel.name, kernel.source, [binding.access for binding in kernel.bindings])
    buffers = [device.buffer(kernel.name, array.nbytes, usage) for array in arrays]
    with device.naming(f"the test {kernel.name}"):
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


def sample_pipelines(device: GpuDevice) -> int:
    """Compile and run a few kernels of a usual size, and return their number."""
    options = ShaderOptions(head=_HEAD, fused=arithmetic(device).fused, compact=device.adapter.software)
    widths = (64, 128, 192, 256)
    for width in widths:
        words = (_HEAD.words, width, width, code_stride(width), 1)
        run_once(device, quantize(options, width=width, eps=1e-5), [np.zeros(count, np.uint32) for count in words], 1)
    return len(widths)


@dataclass(frozen=True, kw_only=True)
class ArithmeticCases:
    """Triples of numbers on which the possible answers of an adapter differ.

    Members:
        kernel: the kernel that computes with them.
        arrays: contents of its buffers before: the header, float32 [n, 3], zeros of the same shape.
        results: float32 [n, 3], correctly rounded: fma, product and sum.
        normal: number of triples that are not tiny, which come first.
    """

    kernel: Kernel
    arrays: tuple[NDArray[Any], ...]
    results: NDArray[np.float32]
    normal: int


@cache
def arithmetic_cases() -> ArithmeticCases:
    """Return the cases by which an adapter's arithmetic is measured, natively and in a browser."""
    x = _numbers()
    a, b, c = (x[:, column] for column in range(3))
    # Products of float32 have 48 bits, so they are exact here.
    right = np.stack([_round_sum(a.astype(np.float64) * b, c), a * b, a + c], 1)
    return ArithmeticCases(
        kernel=arithmetic_kernel(ShaderOptions(head=_HEAD), count=len(x)),
        arrays=(_HEAD.new(), x, np.zeros_like(x)),
        results=right,
        normal=_NORMAL,
    )


@cache
def arithmetic(device: GpuDevice) -> Arithmetic:
    """Measure the arithmetic of a device, once.

    Raises:
        DeviceError: sums or products are not rounded correctly, so that no result of the device would be exact.
    """
    cases = arithmetic_cases()
    groups, _, _ = cases.kernel.groups.of(1, 1)
    y = run_once(device, cases.kernel, cases.arrays, groups).view(np.float32).reshape(-1, 3)
    same = y.view(np.uint32) == cases.results.view(np.uint32)
    if not same[:_NORMAL, 1:].all():
        raise DeviceError(
            f"device gpu: {device.adapter.label} does not round float32 sums and products correctly; update its driver, or "
            "use --device cpu"
        )
    return Arithmetic(fused=bool(same[:_NORMAL, 0].all()), subnormals=bool(same[_NORMAL:, 1:].all()))


def _numbers() -> NDArray[np.float32]:
    """Return numbers a, b and c [n, 3] whose products and sums show each way of rounding; the last ones are tiny."""
    rng = np.random.default_rng(5)
    normal = rng.standard_normal((_NORMAL, 3)).astype(np.float32)
    normal[:, 2] = -normal[:, 0] * normal[:, 1] * (1 + rng.choice([0, 2**-22, 2**-12], _NORMAL)).astype(np.float32)
    tiny = (normal[:64] * np.float32(1e-20)).astype(np.float32)
    tiny[:, 2] = rng.standard_normal(64).astype(np.float32) * np.float32(1e-40)
    return np.ascontiguousarray(np.concatenate([normal, tiny]))


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
