"""Test how an adapter's arithmetic is measured."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("wgpu", reason="the package wgpu is not installed; .ci/environment dev installs it")

from edgedec.errors import DeviceError
from edgedec.runtime.gpu import probe
from edgedec.runtime.gpu.device import GpuDevice
from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.probes import arithmetic

FLOATS = st.floats(-(2.0**40), 2.0**40, width=32)


def nearest(value: Fraction) -> np.float32:
    """Return the float32 next to a number, of two the one that is even."""
    middle = np.float32(float(value))
    around = [np.nextafter(middle, np.float32(-np.inf)), middle, np.nextafter(middle, np.float32(np.inf))]
    return min(around, key=lambda near: (abs(Fraction(float(near)) - value), int(near.view(np.int32)) & 1))


@given(FLOATS, FLOATS, FLOATS)
def test_the_expected_sum_has_one_rounding(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    product = np.array([a], np.float64) * b
    (rounded,) = probe._round_sum(product, np.array([c], np.float32))
    assert rounded == nearest(exact)


def test_an_adapter_has_the_arithmetic_that_every_kernel_needs(gpu: GpuDevice) -> None:
    assert isinstance(probe.arithmetic(gpu).fused, bool)


def test_wrong_sums_are_refused(gpu: GpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any, **options: Any) -> Kernel:
        kernel = arithmetic(*arguments, **options)
        changed = kernel.source.replace("mul(x[3u * i], x[3u * i + 1u])", "mul(x[3u * i], x[3u * i + 1u] * 1.0000001)")
        assert changed != kernel.source
        return replace(kernel, source=changed)

    monkeypatch.setattr(probe, "arithmetic_kernel", wrong)
    monkeypatch.setattr(probe, "arithmetic_cases", probe.arithmetic_cases.__wrapped__)  # without what it keeps
    with pytest.raises(DeviceError, match=r"does not round float32 sums .* --device cpu"):
        probe.arithmetic.__wrapped__(gpu)
