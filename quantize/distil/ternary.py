"""Compute ternary weights and int8 activations as the bundle will, with straight-through gradients.

Source: BitNet b1.58 (2402.17764) for absmean weights and absmax activations; 1308.3432 for the straight-through estimator.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["fake_int8", "fake_ternary", "ternary_weight"]

_LEAST_SCALE = 1e-5  # least scale of a tensor or group whose values are almost zero, as in BitNet


def ternary_weight(weight: Tensor, group_size: int = 0) -> tuple[Tensor, Tensor]:
    """Round weights to the nearest of -1, 0 and 1 times the mean magnitude.

    Args:
        weight: float [out, in].
        group_size: number of columns of a row that share a scale, which must divide ``in``; 0: one scale for the tensor.

    Returns:
        Trits [out, in] in {-1, 0, 1} and the scale, [] or [out, in / group_size], both of the weight's type.
    """
    if not group_size:
        scale = weight.abs().mean().clamp(min=_LEAST_SCALE)
        return (weight / scale).round().clamp(-1, 1), scale
    groups = weight.unflatten(1, (-1, group_size))
    scale = groups.abs().mean(-1, keepdim=True).clamp(min=_LEAST_SCALE)
    return (groups / scale).round().clamp(-1, 1).flatten(1), scale[..., 0]


def _straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """Return exactly ``rounded``, with the gradient of ``x``. The added difference is zero, or NaN where x is not finite."""
    return rounded.detach() + (x - x.detach())


def fake_ternary(weight: Tensor, group_size: int = 0) -> Tensor:
    """Return ``scale * trits`` with the gradient of the identity."""
    trits, scale = ternary_weight(weight.detach(), group_size)
    if group_size:
        scale = scale.repeat_interleave(group_size, dim=1)
    return _straight_through(weight, trits * scale)


def fake_int8(x: Tensor) -> Tensor:
    """Return x [..., width] rounded to int8 with the scale absmax / 127 per row, as float32 with the identity's gradient.

    The result is float32 for a bfloat16 x, too: its 8 bits of mantissa would round the codes a second time, up to 128.
    """
    x = x.float()
    fixed = x.detach()
    scale = fixed.abs().amax(-1, keepdim=True) / 127
    # The reference does the same: a row of zeros has the scale 0, and below 2^-142 the scale has few bits, so that a code
    # could exceed 127. NaN is not equal to 0 and passes on.
    codes = (fixed / scale).masked_fill(scale == 0, 0.0).round().clamp(-127, 127)
    return _straight_through(x, codes * scale)
