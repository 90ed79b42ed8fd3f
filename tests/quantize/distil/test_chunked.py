"""Test that recurrences by chunks are those row by row: their outputs, their states and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch.nn import functional

from edgedec.quantize.distil import chunked

pytestmark = pytest.mark.compare

LENGTHS = [1, 7, 64, 65, 200, 300]
CHUNK = 16  # besides the usual one: a length of 300 then has 19 chunks, the last of them short


def delta_by_rows(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for row in range(q.shape[2]):
        query, key, value = (part[:, :, row, :, None] for part in (q, k, v))
        state = decay[:, :, row, None, None].exp() * state
        state = state + key @ (rate[:, :, row, None, None] * (value - state.mT @ key)).mT
        outputs.append((state.mT @ query)[..., 0])
    return torch.stack(outputs, 2), state


def scan_by_rows(x: Tensor, b: Tensor, c: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for row in range(x.shape[2]):
        state = decay[:, :, row, None, None].exp() * state + x[:, :, row, :, None] @ b[:, :, row, None]
        outputs.append((state @ c[:, :, row, :, None])[..., 0])
    return torch.stack(outputs, 2), state


def delta_inputs(n: int, *, repeated: bool = False) -> list[Tensor]:
    """Return inputs as a model gives them; with ``repeated``, all keys are almost one and almost nothing fades."""
    generator = torch.Generator().manual_seed(n)

    def draw(*shape: int) -> Tensor:
        return torch.randn(2, 3, *shape, generator=generator)

    q, k, v = draw(n, 8), draw(n, 8), draw(n, 5)
    k = k[:, :, :1] + 1e-3 * k if repeated else k
    rate, decay = (draw(n) + (5 if repeated else 0)).sigmoid(), -functional.softplus(draw(n) - (9 if repeated else 1))
    return [functional.normalize(q, dim=-1), functional.normalize(k, dim=-1), v, decay, rate, draw(8, 5)]


def scan_inputs(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    x, b, c, decay, state = (
        torch.randn(2, 3, *shape, generator=generator) for shape in ((n, 5), (n, 8), (n, 8), (n,), (5, 8))
    )
    return [x, b, c, -functional.softplus(decay - 1), state]


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[int], list[Tensor]]]] = {
    "delta": (chunked.gated_delta_rule, delta_by_rows, delta_inputs),
    "repeated keys": (chunked.gated_delta_rule, delta_by_rows, lambda n: delta_inputs(n, repeated=True)),
    "scan": (chunked.selective_scan, scan_by_rows, scan_inputs),
}


@pytest.mark.parametrize("chunk", [CHUNK, chunked.CHUNK])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", LENGTHS)
def test_chunks_equal_rows(n: int, case: str, chunk: int) -> None:
    """Allow some units of float32, also where keys repeat and the rows of a chunk nearly cancel."""
    by_chunks, by_rows, make = CASES[case]
    inputs = make(n)
    expected = by_rows(*(part.double() for part in inputs))
    actual = by_chunks(*inputs, chunk=chunk)
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).abs().max() < 2e-5 * max(1, float(other.abs().max()))
    none = by_chunks(*inputs[:-1], None, chunk=chunk)
    zeros = by_chunks(*inputs[:-1], torch.zeros_like(inputs[-1]), chunk=chunk)
    for one, other in zip(none, zeros, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [7, 90])
def test_gradients_equal_those_by_rows(n: int, case: str) -> None:
    by_chunks, by_rows, make = CASES[case]
    gradients = []
    for function, options in ((by_chunks, {"chunk": CHUNK}), (by_rows, {})):
        inputs = [part.double().requires_grad_() for part in make(n)]
        out, state = function(*inputs, **options)
        weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
        ((out * weights).sum() + state.square().sum()).backward()
        gradients.append([part.grad for part in inputs])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3, 16, 48, 64])
def test_the_inverse_does_not_cancel_where_all_keys_are_one(size: int) -> None:
    """Check this because the powers of this matrix reach 1e18, and the elements of its inverse are -1, 0 and 1."""
    lower = torch.ones(2, size, size).tril(-1)
    expected = torch.eye(size) - torch.eye(size).roll(1, 0).tril(-1)
    assert torch.equal(chunked.unit_lower_inverse(lower), expected.expand(2, size, size))
