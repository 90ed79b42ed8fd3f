"""Compute linear recurrences for all positions at once, by chunks: matrix products take the place of the loop over rows.

The functions compute what the operations ``gated_delta_rule`` and ``selective_scan`` define row by row. Within a chunk, rows
see each other through a triangular matrix. Between chunks, a state becomes a matrix times the state before it plus what the
chunk adds; these steps are composed by doubling, so that c chunks take log2(c) rounds.

Source: 2412.06464, section 3.3 (gated delta rule), and 2406.06484 for its WY representation; 2405.21060, section 6 (state
space duality); the inverse and the composition by doubling are derived here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["CHUNK", "gated_delta_rule", "selective_scan", "unit_lower_inverse"]

CHUNK = 64  # rows


class _UnitLowerInverse(torch.autograd.Function):
    """The inverse of I + L for strictly lower triangular L [..., size, size].

    The inverses of blocks on the diagonal are merged in pairs until one block is left, as in substitution by blocks: a sum
    of powers of L would cancel where keys repeat.
    """

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        size = lower.shape[-1]
        at = torch.arange(size, device=lower.device)
        inverse = torch.eye(size, device=lower.device, dtype=lower.dtype).expand(lower.shape)
        half = 1
        while half < size:
            block = at // half
            pair = (block[:, None] == block + 1) & (block % 2 == 0)  # rows of each second block, columns of the first
            between = lower * pair
            inverse = inverse - (between if half == 1 else inverse @ between @ inverse)
            half *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ gradients[0] @ inverse.mT).tril(-1)


def unit_lower_inverse(lower: Tensor) -> Tensor:
    """Return the inverse of I + ``lower`` for a strictly lower triangular ``lower`` [..., size, size]."""
    result: Tensor = _UnitLowerInverse.apply(lower)
    return result


def _chunks(x: Tensor, size: int) -> Tensor:
    """Return x [batch, heads, n, ...] as [batch, heads, chunks, size, ...], with zeros after the last row."""
    missing = -x.shape[2] % size
    if missing:
        x = torch.cat((x, x.new_zeros((*x.shape[:2], missing, *x.shape[3:]))), 2)
    return x.unflatten(2, (-1, size))


def _rows(x: Tensor, n: int) -> Tensor:
    """Return the first n rows of chunks [batch, heads, chunks, size, width] as [batch, heads, n, width]."""
    return x.flatten(2, 3)[:, :, :n]


def _fading(total: Tensor) -> Tensor:
    """Return exp(total at i - total at j) for j <= i and 0 elsewhere, [..., size, size], of total [..., size]."""
    return (total[..., :, None] - total[..., None, :]).tril().exp().tril()


def _states(keep: Tensor, added: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the state before each chunk, [batch, heads, chunks, rows, columns], and the state after the last one.

    A chunk makes the state keep @ state + added. ``keep`` is [batch, heads, chunks, rows, rows], or
    [batch, heads, chunks, 1, 1] for a factor.
    """
    factor = keep.shape[-2:] == (1, 1)

    def after(a: Tensor, b: Tensor) -> Tensor:
        return a * b if factor else a @ b

    if first is not None:  # the first chunk adds what is left of it
        head = added[:, :, :1] + after(keep[:, :, :1], first[:, :, None])
        added = torch.cat((head, added[:, :, 1:]), 2)
    shift, count = 1, added.shape[2]
    while shift < count:
        later = keep[:, :, shift:]
        added = torch.cat((added[:, :, :shift], added[:, :, shift:] + after(later, added[:, :, :-shift])), 2)
        if 2 * shift < count:
            keep = torch.cat((keep[:, :, :shift], after(later, keep[:, :, :-shift])), 2)
        shift *= 2
    start = torch.zeros_like(added[:, :, :1]) if first is None else first[:, :, None]
    return torch.cat((start, added[:, :, :-1]), 2), added[:, :, -1]


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor, state: Tensor | None = None, *, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """Return the outputs [batch, heads, n, value_dim] and the state [batch, heads, key_dim, value_dim] after the last row.

    A row makes the state D + outer(k, rate * (v - D.T @ k)) with D = exp(decay) * state; its output is state.T @ q.

    Args:
        q, k: float [batch, heads, n, key_dim], already normalized and scaled.
        v: float [batch, heads, n, value_dim].
        decay: float [batch, heads, n], at most 0.
        rate: float [batch, heads, n].
        state: the state before the first row; None: zeros.
    """
    n = q.shape[2]
    size = min(chunk, n)
    q, k, v, decay, rate = (_chunks(x, size) for x in (q, k, v, decay, rate))
    total = decay.cumsum(-1)
    fading, since, rate = _fading(total), total.exp()[..., None], rate[..., None]
    # Row i writes rate_i * (v_i - what the state has at k_i); what earlier rows of the chunk wrote is part of that.
    inverse = unit_lower_inverse((rate * (k @ k.mT) * fading).tril(-1))
    fresh, seen = (
        inverse @ (rate * v),
        inverse @ (rate * since * k),
    )  # written, if the state before is zero, and what of it
    left = k * (total[..., -1:] - total).exp()[..., None]  # keys, as much as is left of them after the chunk
    identity = torch.eye(k.shape[-1], device=k.device, dtype=k.dtype)
    before, last = _states(identity * since[..., -1:, :] - left.mT @ seen, left.mT @ fresh, state)
    written = fresh - seen @ before
    return _rows(since * (q @ before) + ((q @ k.mT) * fading) @ written, n), last


def selective_scan(
    x: Tensor, b: Tensor, c: Tensor, decay: Tensor, state: Tensor | None = None, *, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """Return the outputs [batch, heads, n, head_dim] and the state [batch, heads, head_dim, size] after the last row.

    A row makes the state exp(decay) * state + outer(x, b); its output is state @ c.

    Args:
        x: float [batch, heads, n, head_dim].
        b, c: float [batch, heads, n, size].
        decay: float [batch, heads, n], at most 0.
        state: the state before the first row; None: zeros.
    """
    n = x.shape[2]
    size = min(chunk, n)
    x, b, c, decay = (_chunks(part, size) for part in (x, b, c, decay))
    total = decay.cumsum(-1)
    left = x * (total[..., -1:] - total).exp()[..., None]
    before, last = _states(total[..., -1:, None].exp(), left.mT @ b, state)
    return _rows(total.exp()[..., None] * (c @ before.mT) + ((c @ b.mT) * _fading(total)) @ x, n), last
