"""Straight-through ternary weights and int8 activations: what the bundle will compute, with gradients.

Source: BitNet b1.58 (2402.17764) for absmean weights and absmax activations; 1308.3432 for the straight-through estimator.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["fake_int8", "fake_ternary", "ternary_weight"]

_LEAST_SCALE = 1e-5  # of a tensor that is all but zero, as in BitNet


def ternary_weight(weight: Tensor, group_size: int = 0) -> tuple[Tensor, Tensor]:
    """The nearest multiples of the mean magnitude, cut to -1, 0 and 1.

    Args:
        weight: float [out, in].
        group_size: columns that share a scale, in a row; 0: the whole tensor does. It must divide ``in``.

    Returns:
        trits [out, in] in {-1, 0, 1} and scale, [] or [out, in / group_size], both of the weight's type.
    """
    if not group_size:
        scale = weight.abs().mean().clamp(min=_LEAST_SCALE)
        return (weight / scale).round().clamp(-1, 1), scale
    groups = weight.unflatten(1, (-1, group_size))
    scale = groups.abs().mean(-1, keepdim=True).clamp(min=_LEAST_SCALE)
    return (groups / scale).round().clamp(-1, 1).flatten(1), scale[..., 0]


def _straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """Exactly ``rounded``, with the gradient of ``x``: what is added is zero, or NaN where x is not finite."""
    return rounded.detach() + (x - x.detach())


def fake_ternary(weight: Tensor, group_size: int = 0) -> Tensor:
    """The value of ``scale * trits`` with the gradient of the identity."""
    trits, scale = ternary_weight(weight.detach(), group_size)
    if group_size:
        scale = scale.repeat_interleave(group_size, dim=1)
    return _straight_through(weight, trits * scale)


def fake_int8(x: Tensor) -> Tensor:
    """x [..., width] rounded to int8 with one scale per row, absmax / 127, with the gradient of the identity; float32.

    In float32 also where x is bfloat16, whose 8 bits of mantissa would round codes a second time, and up to 128.
    """
    x = x.float()
    fixed = x.detach()
    scale = fixed.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return _straight_through(x, (fixed / scale).round() * scale)
