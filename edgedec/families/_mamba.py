"""The mixer of Mamba 2, which Falcon H1 has beside its attention."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgedec.errors import BundleError
from edgedec.families._builder import GraphBuilder

__all__ = ["MOST_TAPS", "Mixer", "mixer", "step_limits"]

MOST_TAPS = 64  # far more than any kernel has


@dataclass(frozen=True, kw_only=True)
class Mixer:
    """The settings of a mixer.

    Members:
        hidden: columns of its input and output.
        heads, head_dim, state: sizes of its state [head_dim, state] of each head.
        groups: groups of heads, each with inputs b and c of its own.
        kernel: taps of the convolution.
        eps: eps of the gated norm; None: there is no norm, only the gate.
        bias, conv_bias: True if the linears and the convolution have biases.
        limits: least and largest step.
        multipliers: factors of gate, x, b, c and step behind the input's linear.

    Raises:
        BundleError: the groups do not divide the heads.
    """

    hidden: int
    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int
    eps: float | None
    bias: bool
    conv_bias: bool
    limits: tuple[float, float]
    multipliers: tuple[float, ...] = (1.0,) * 5

    def __post_init__(self) -> None:
        if self.heads % self.groups:
            raise BundleError(f"configuration: {self.heads} heads are not a multiple of n_groups {self.groups}")


def mixer(g: GraphBuilder, settings: Mixer, at: str, hf: str, x: str) -> str:
    """Append a mixer, and return its output.

    The names of values are ``AT.{in,conv,scan,gated,out_proj}``, ``AT.parts.{gate,mixed,step}``,
    ``AT.conv_parts.{x,b,c}``, with multipliers also ``AT.in_scaled``.
    """
    inner, inputs = settings.heads * settings.head_dim, settings.groups * settings.state
    channels, bias = inner + 2 * inputs, settings.bias
    projected = g.linear(
        f"{at}.in",
        x,
        weight=f"{hf}.in_proj.weight",
        bias=f"{hf}.in_proj.bias" if bias else None,
        out=inner + channels + settings.heads,
    )
    widths = (inner, inner, inputs, inputs, settings.heads)
    projected = g.scale(f"{at}.in_scaled", projected, settings.multipliers, widths)
    gate, mixed, step = g.split(f"{at}.parts", projected, {"gate": inner, "mixed": channels, "step": settings.heads})
    conv_bias = f"{hf}.conv1d.bias" if settings.conv_bias else None
    mixed = g.causal_conv(f"{at}.conv", mixed, weight=f"{hf}.conv1d.weight", bias=conv_bias, kernel=settings.kernel)
    scanned, b, c = g.split(f"{at}.conv_parts", mixed, {"x": inner, "b": inputs, "c": inputs})
    scanned = g.selective_scan(
        f"{at}.scan",
        scanned,
        b,
        c,
        step,
        groups=settings.groups,
        decay=f"{hf}.A_log",
        skip=f"{hf}.D",
        step_bias=f"{hf}.dt_bias",
        step_limits=settings.limits,
    )
    if settings.eps is None:
        gated = g.gated_activation(f"{at}.gated", gate, scanned, "silu")
    else:
        norm = f"{hf}.norm.weight"
        gated = g.gated_rms_norm(f"{at}.gated", gate, scanned, weight=norm, eps=settings.eps, groups=settings.groups)
    return g.linear(
        f"{at}.out_proj",
        gated,
        weight=f"{hf}.out_proj.weight",
        bias=f"{hf}.out_proj.bias" if bias else None,
        out=settings.hidden,
    )


def step_limits(config: Mapping[str, Any]) -> tuple[float, float]:
    """Return ``time_step_limit``: the least and the largest step of the scan; 0 and infinity if it is absent.

    Raises:
        BundleError: it is no pair of numbers from 0 on, the smaller first.
    """
    limits = config.get("time_step_limit")
    if limits is None:
        return 0.0, float("inf")
    # JSON has no infinity: transformers writes this object.
    values = [float("inf") if one == {"__float__": "Infinity"} else one for one in limits] if _is_list(limits) else []
    if len(values) != 2 or not all(map(_is_number, values)) or not 0 <= values[0] <= values[1]:
        raise BundleError(
            "configuration: time_step_limit must be two numbers from 0 on, the smaller first, "
            f"not {reprlib.repr(limits)}"
        )
    return float(values[0]), float(values[1])


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
