"""The gated delta net of Qwen3-Next and Qwen 3.5, which stands in the place of attention in most of their layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.errors import BundleError
from edgedec.families._builder import GraphBuilder
from edgedec.families._config import number, size

__all__ = ["delta_net"]

_MOST_TAPS = 64  # far more than any kernel
_KEY_HEADS, _HEADS, _DIM, _KERNEL = 16, 32, 128, 4  # defaults of the classes


def delta_net(g: GraphBuilder, config: Mapping[str, Any], at: str, hf: str, x: str, *, fused: bool) -> str:
    """Append a gated delta net and return its output, which is as wide as x.

    The names of values are ``AT.{mixed,conv,delta,delta_norm,gated,o}``, ``AT.conv_parts.{q,k,v}``; without ``fused`` also
    ``AT.{z,rate,step}``, with it ``AT.{qkvz,rates}`` and their parts.

    Args:
        at: beginning of the names of values.
        hf: beginning of the names of weights, to which ``.linear_attn`` is added.
        fused: whether q, k, v and z are one matrix, in which each key head has its parts of all four, and the two rates
            another one; else there are four matrices.

    Raises:
        BundleError: a size is missing or out of range, or the heads are not a multiple of the key heads.
    """
    key_heads, heads = size(config, "linear_num_key_heads", _KEY_HEADS), size(config, "linear_num_value_heads", _HEADS)
    key_dim, dim = size(config, "linear_key_head_dim", _DIM), size(config, "linear_value_head_dim", _DIM)
    kernel = size(config, "linear_conv_kernel_dim", _KERNEL, limit=_MOST_TAPS)
    if heads % key_heads:
        raise BundleError(
            f"configuration: linear_num_value_heads {heads} is not a multiple of linear_num_key_heads {key_heads}"
        )
    hf, keys, values, each = f"{hf}.linear_attn", key_heads * key_dim, heads * dim, heads // key_heads

    def linear(name: str, weight: str, out: int) -> str:
        return g.linear(f"{at}.{name}", x, weight=f"{hf}.{weight}.weight", out=out)

    if fused:
        qkvz = linear("qkvz", "in_proj_qkvz", 2 * keys + 2 * values)
        widths = {"q": key_dim, "k": key_dim, "v": each * dim, "z": each * dim}
        *parts, z = g.split(f"{at}.qkvz_parts", qkvz, widths, heads=key_heads)
        mixed = g.concat(f"{at}.mixed", *parts)
        rates = linear("rates", "in_proj_ba", 2 * heads)
        rate, step = g.split(f"{at}.rates_parts", rates, {"rate": each, "step": each}, heads=key_heads)
    else:
        mixed, z = linear("mixed", "in_proj_qkv", 2 * keys + values), linear("z", "in_proj_z", values)
        rate, step = linear("rate", "in_proj_b", heads), linear("step", "in_proj_a", heads)
    mixed = g.causal_conv(f"{at}.conv", mixed, weight=f"{hf}.conv1d.weight", bias=None, kernel=kernel)
    q, k, v = g.split(f"{at}.conv_parts", mixed, {"q": keys, "k": keys, "v": values})
    delta = g.gated_delta_rule(
        f"{at}.delta", q, k, v, rate, step, key_heads=key_heads, decay=f"{hf}.A_log", step_bias=f"{hf}.dt_bias"
    )
    eps = number(config, "rms_norm_eps", 1e-6)
    delta = g.rms_norm(f"{at}.delta_norm", delta, weight=f"{hf}.norm.weight", eps=eps, heads=heads)
    gated = g.gated_activation(f"{at}.gated_delta", z, delta, "silu")
    return g.linear(f"{at}.o", gated, weight=f"{hf}.out_proj.weight", out=size(config, "hidden_size"))
