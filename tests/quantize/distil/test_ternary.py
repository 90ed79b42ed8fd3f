"""Test fake quantization: exactly the values of the bundle, with the gradient of the identity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

pytest.importorskip("torch")

import torch

from edgedec.quantize.distil.ternary import fake_int8, fake_ternary, ternary_weight
from edgedec.reference.float_profile.ops.quantize_activation import quantize_rows

pytestmark = pytest.mark.compare

sizes = st.sampled_from([0, 32, 64, 128])
finite = st.floats(-1e4, 1e4, width=32)
matrices = st.integers(1, 4).flatmap(lambda rows: arrays(np.float32, (rows, 128), elements=finite))


@given(matrices, sizes)
def test_ternary_weight_is_absmean_rounding(weight: np.ndarray, group_size: int) -> None:
    trits, scale = (value.numpy() for value in ternary_weight(torch.from_numpy(weight), group_size))
    assert set(np.unique(trits)) <= {-1, 0, 1}
    assert scale.shape == ((len(weight), 128 // group_size) if group_size else ())
    groups = weight.reshape(len(weight), -1, group_size) if group_size else weight.reshape(1, 1, -1)
    means = np.abs(groups.astype(np.float64)).mean(-1)
    assert np.allclose(scale, np.maximum(means, 1e-5).reshape(scale.shape), rtol=1e-5)
    share = groups / scale.reshape(*groups.shape[:2], 1)
    clear = np.abs(np.abs(share) - 0.5) > 1e-4  # a value at a border may round either way
    assert (trits.reshape(groups.shape)[clear] == np.clip(np.rint(share), -1, 1)[clear]).all()


@given(matrices, sizes)
def test_fake_ternary_is_exact_and_its_gradient_the_identity(weight: np.ndarray, group_size: int) -> None:
    latent = torch.from_numpy(weight).requires_grad_()
    rounded = fake_ternary(latent, group_size)
    trits, scale = ternary_weight(latent.detach(), group_size)
    columns = scale.repeat_interleave(group_size, 1) if group_size else scale
    assert torch.equal(rounded.detach(), trits * columns)
    wish = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    total: Any = (rounded * wish).sum()
    total.backward()
    assert latent.grad is not None
    assert torch.equal(latent.grad, wish)


@given(matrices)
def test_fake_int8_rounds_like_the_reference(x: np.ndarray) -> None:
    codes, scale = quantize_rows(x)
    assert np.array_equal(fake_int8(torch.from_numpy(x)).numpy(), codes * scale)


@pytest.mark.parametrize("largest", [1.0, 1e-30, 9e-31, 1e-35, 1e-38, 1e-40, 1e-43, 1e-45, 0.0])
def test_fake_int8_of_tiny_values_rounds_like_the_reference(largest: float) -> None:
    """Scales go down to denormal numbers, and to zero for a row of zeros."""
    x = np.array([[largest, -largest / 3, largest / 7, 0, -largest]], np.float32)
    codes, scale = quantize_rows(x)
    assert np.array_equal(fake_int8(torch.from_numpy(x)).numpy(), codes * scale)


def test_fake_int8_of_bfloat16_rounds_once() -> None:
    """Check this because in bfloat16 arithmetic 127 * (x / absmax) would be rounded to halves, and up to 128."""
    x = torch.linspace(-3.1, 2.9, 512).bfloat16()[None]
    codes, scale = quantize_rows(x.float().numpy())
    actual = fake_int8(x)
    assert actual.dtype == torch.float32
    assert np.array_equal(actual.numpy(), codes * scale)


def test_fake_int8_has_the_gradient_of_the_identity() -> None:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    total: Any = fake_int8(x).sum()
    total.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_not_hidden(value: float) -> None:
    weight = torch.ones(4, 32)
    weight[1, 2] = value
    assert not torch.isfinite(fake_ternary(weight)).all()
    assert not torch.isfinite(fake_int8(weight)).all()
