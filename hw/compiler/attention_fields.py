"""The fields and constants of an attention's instructions, and what an accelerator must have for them."""

import numpy as np
from numpy.typing import NDArray

from edgedec.graph.graph import KvState
from edgedec.graph.ops import Attention
from edgedec.hw.compiler.matrix import unsupported
from edgedec.hw.compiler.routes import PARTS
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Sink
from edgedec.reference.integer_profile.numbers import Mantissas
from edgedec.reference.integer_profile.ops.attention import AttentionConstants

__all__ = ["cap_fields", "check_heads", "coding_of", "window_fields"]

I64 = NDArray[np.int64]

_WINDOW_BITS = 17  # bits of a window in an instruction


def check_heads(op: Attention, state: KvState, config: AcceleratorConfig) -> None:
    """Check that an accelerator has the heads of an attention, and that its window hides nothing within a pass.

    Raises:
        UnsupportedError: it has fewer heads, others, or too many slots for the window; the message has the remedy.
    """
    for what, number, most in (("heads", op.heads, config.heads), ("kv_heads", state.kv_heads, config.kv_heads)):
        if number > most:
            raise unsupported(op, f"it has {what}={number}; this accelerator has {what}={most}, raise it")
    if state.head_dim != config.head_dim:
        raise unsupported(
            op,
            f"its heads are {state.head_dim} wide; this accelerator has head_dim={config.head_dim}: make it equal",
        )
    # The RTL applies no window between the rows of a pass.
    if state.window is not None and state.window < config.slots:
        raise unsupported(
            op,
            f"its window is {state.window}; this accelerator has slots={config.slots}: make them {state.window} at most",
        )


def window_fields(state: KvState, context: int) -> dict[str, int]:
    """Return the fields of a window; a window of 1000 with 4 sinks gives ``{"window": 1000, "sinks": 4}``.

    Args:
        context: positions of the cache; the accelerator keeps no more bits of a number of sinks than of these.
    """
    most = (1 << _WINDOW_BITS) - 1
    # A window as long as the cache hides nothing.
    window = 0 if state.window is None or state.window > most else state.window
    return {"window": window, "sinks": min(state.sinks, context) if window else 0}


def coding_of(constants: AttentionConstants, sink: Sink, order: I64 | None) -> tuple[tuple[I64, I64], int]:
    """Return the mantissas and the middles of the codes of queries, keys or values, and the shift of these.

    Args:
        order: order of the elements, int64 [elements]; None: that of the vector.
    """
    factor: Mantissas = (constants.q, constants.k, constants.v)[PARTS.index(sink)]
    mantissas = factor.values.reshape(-1)
    middles = constants.k_middle.reshape(-1) if sink == Sink.KEYS else np.zeros(len(mantissas), np.int64)
    if order is not None:
        mantissas, middles = mantissas[order], middles[order]
    return (mantissas, middles), -factor.exponent


def cap_fields(
    op: Attention, constants: AttentionConstants, config: AcceleratorConfig
) -> tuple[dict[str, int], Mantissas]:
    """Return the fields of the factor of capped scores, and the factors of the scores of each head.

    Raises:
        UnsupportedError: the scores have a soft-cap and the accelerator has none, or the reverse.
    """
    if (constants.cap is not None) != config.score_cap:
        what = "have no soft-cap" if constants.cap is None else "have a soft-cap"
        raise unsupported(op, f"its scores {what}; generate the accelerator with score_cap={constants.cap is not None}")
    if constants.cap is None:
        return {}, constants.score
    # A capped score has the same unit in all heads.
    return {"cap_factor": int(constants.score.values[0]), "cap_shift": -constants.score.exponent}, constants.cap
