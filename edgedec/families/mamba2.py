"""Mamba 2: state space layers without attention, whose state does not grow with the text."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from edgedec.errors import BundleError
from edgedec.families._builder import GraphBuilder
from edgedec.families._config import flag, layers, number, only, size
from edgedec.graph import Graph

__all__ = ["build"]

_MOST_TAPS = 64  # far more than any kernel


def build(config: Mapping[str, Any]) -> Graph:
    """Build the graph of a configuration of ``Mamba2ForCausalLM``.

    The names of values are ``layers.I.{norm,in,conv,scan,gated,out_proj,out}``, ``layers.I.parts.{gate,mixed,step}``,
    ``layers.I.conv_parts.{x,b,c}``, ``final_norm``, ``logits``.

    Raises:
        BundleError: a size is missing or out of range, or sizes do not fit each other.
        UnsupportedError: a setting is not supported.
    """
    only(config, "hidden_act", (None, "silu", "swish"))
    only(config, "rms_norm", (None, True))
    hidden, vocab = size(config, "hidden_size"), size(config, "vocab_size")
    heads, head_dim, width = size(config, "num_heads"), size(config, "head_dim"), size(config, "state_size")
    groups, kernel = size(config, "n_groups", 8), size(config, "conv_kernel", 4, limit=_MOST_TAPS)
    inner = size(config, "expand", 2) * hidden
    if heads * head_dim != inner:
        raise BundleError(f"configuration: {heads} heads of {head_dim} are not expand * hidden_size, which is {inner}")
    if heads % groups:
        raise BundleError(f"configuration: {heads} heads are not a multiple of n_groups {groups}")
    eps, bias = number(config, "layer_norm_epsilon", 1e-5), flag(config, "use_bias")
    conv_bias, step_limits = flag(config, "use_conv_bias", True), _step_limits(config)
    g, channels = GraphBuilder(), inner + 2 * groups * width
    x = g.embed("embed", weight="backbone.embeddings.weight", vocab=vocab, width=hidden)
    for layer in range(layers(config)):
        at, hf = f"layers.{layer}", f"backbone.layers.{layer}"
        normed = g.rms_norm(f"{at}.norm", x, weight=f"{hf}.norm.weight", eps=eps)
        projected = g.linear(
            f"{at}.in",
            normed,
            weight=f"{hf}.mixer.in_proj.weight",
            bias=f"{hf}.mixer.in_proj.bias" if bias else None,
            out=inner + channels + heads,
        )
        gate, mixed, step = g.split(f"{at}.parts", projected, {"gate": inner, "mixed": channels, "step": heads})
        mixed = g.causal_conv(
            f"{at}.conv",
            mixed,
            weight=f"{hf}.mixer.conv1d.weight",
            bias=f"{hf}.mixer.conv1d.bias" if conv_bias else None,
            kernel=kernel,
        )
        scanned_x, b, c = g.split(f"{at}.conv_parts", mixed, {"x": inner, "b": groups * width, "c": groups * width})
        scanned = g.selective_scan(
            f"{at}.scan",
            scanned_x,
            b,
            c,
            step,
            groups=groups,
            decay=f"{hf}.mixer.A_log",
            skip=f"{hf}.mixer.D",
            step_bias=f"{hf}.mixer.dt_bias",
            step_limits=step_limits,
        )
        gated = g.gated_rms_norm(f"{at}.gated", gate, scanned, weight=f"{hf}.mixer.norm.weight", eps=eps, groups=groups)
        out = g.linear(
            f"{at}.out_proj",
            gated,
            weight=f"{hf}.mixer.out_proj.weight",
            bias=f"{hf}.mixer.out_proj.bias" if bias else None,
            out=hidden,
        )
        x = g.add(f"{at}.out", x, out)
    normed = g.rms_norm("final_norm", g.select_rows("wanted", x), weight="backbone.norm_f.weight", eps=eps)
    tied = flag(config, "tie_word_embeddings")
    weight = "backbone.embeddings.weight" if tied else "lm_head.weight"
    return g.graph(logits=g.linear("logits", normed, weight=weight, out=vocab))


def _step_limits(config: Mapping[str, Any]) -> tuple[float, float]:
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
