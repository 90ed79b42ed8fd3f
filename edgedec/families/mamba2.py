"""Mamba 2: state space layers without attention, whose state does not grow with the text.

Source: 2405.21060; ``models/mamba2`` of transformers 5.24, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.errors import BundleError
from edgedec.families._builder import GraphBuilder
from edgedec.families._config import flag, layers, number, only, size
from edgedec.families._mamba import MOST_TAPS, Mixer, mixer, step_limits
from edgedec.graph.graph import Graph

__all__ = ["build"]


def build(config: Mapping[str, Any]) -> Graph:
    """Build the graph of a configuration of ``Mamba2ForCausalLM``.

    The names of values are ``layers.I.{norm,out}``, those of ``mixer`` behind ``layers.I``, ``final_norm``, ``logits``.

    Raises:
        BundleError: a size is missing or out of range, or sizes do not fit each other.
        UnsupportedError: a setting is not supported.
    """
    only(config, "hidden_act", (None, "silu", "swish"))
    only(config, "rms_norm", (None, True))
    hidden, vocab, eps = (
        size(config, "hidden_size"),
        size(config, "vocab_size"),
        number(config, "layer_norm_epsilon", 1e-5),
    )
    settings = Mixer(
        hidden=hidden,
        heads=size(config, "num_heads"),
        head_dim=size(config, "head_dim"),
        state=size(config, "state_size"),
        groups=size(config, "n_groups", 8),
        kernel=size(config, "conv_kernel", 4, limit=MOST_TAPS),
        eps=eps,
        bias=flag(config, "use_bias"),
        conv_bias=flag(config, "use_conv_bias", True),
        limits=step_limits(config),
    )
    inner = size(config, "expand", 2) * hidden
    if settings.heads * settings.head_dim != inner:
        raise BundleError(
            f"configuration: {settings.heads} heads of {settings.head_dim} are not expand * hidden_size, which is {inner}"
        )
    g = GraphBuilder()
    x = g.embed("embed", weight="backbone.embeddings.weight", vocab=vocab, width=hidden)
    for layer in range(layers(config)):
        at, hf = f"layers.{layer}", f"backbone.layers.{layer}"
        normed = g.rms_norm(f"{at}.norm", x, weight=f"{hf}.norm.weight", eps=eps)
        x = g.add(f"{at}.out", x, mixer(g, settings, at, f"{hf}.mixer", normed))
    normed = g.rms_norm("final_norm", g.select_rows("wanted", x), weight="backbone.norm_f.weight", eps=eps)
    weight = "backbone.embeddings.weight" if flag(config, "tie_word_embeddings") else "lm_head.weight"
    return g.graph(logits=g.linear("logits", normed, weight=weight, out=vocab))
