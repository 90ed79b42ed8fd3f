"""The number of query heads that attend together, as ``AcceleratorConfig.together`` defines it, in hardware."""

from amaranth.hdl import Mux, Value

from edgedec.hw.config import AcceleratorConfig

__all__ = ["LOG_BITS", "together_log2"]

LOG_BITS = 2  # bits of a logarithm of rows, of which there are at most 8


def together_log2(config: AcceleratorConfig, group: Value, slots: Value) -> tuple[Value, Value]:
    """Return two logarithms to the base 2: of the heads that attend together, and of the rows that each of them takes.

    Args:
        group: heads that share keys and values, at least 1.
        slots: tokens of the pass, 1 to 8.
    """
    rows = config.slots.bit_length() - 1  # log2 of the rows that can be used
    stride = Mux(slots > 4, 3, Mux(slots > 2, 2, slots > 1))
    room = Mux(slots > 4, max(rows - 3, 0), Mux(slots > 2, max(rows - 2, 0), Mux(slots > 1, max(rows - 1, 0), rows)))
    shared = Mux(group[0], 0, Mux(group[1], 1, Mux(group[2], 2, 3)))
    return Mux(shared < room, shared, room)[:LOG_BITS], stride[:LOG_BITS]
