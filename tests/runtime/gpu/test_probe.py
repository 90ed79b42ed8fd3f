"""Test how an adapter's arithmetic is measured."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("wgpu", reason="the package wgpu is not installed; .ci/environment dev installs it")

from edgedec.errors import DeviceError
from edgedec.runtime.gpu import probe
from edgedec.runtime.gpu.device import GpuDevice

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
    wrong = probe._SOURCE.replace("v.x + v.y;", "v.x + v.y * 1.0000001;")
    monkeypatch.setattr(probe, "_SOURCE", wrong)
    with pytest.raises(DeviceError, match=r"does not round float32 sums .* --device cpu"):
        probe.arithmetic.__wrapped__(gpu)
