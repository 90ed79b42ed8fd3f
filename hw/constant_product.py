"""Products with a small constant, without a multiplier."""

from amaranth.hdl import Cat, Const, Value

__all__ = ["product"]


def product(x: Value, factor: int) -> Value:
    """``x * factor`` of unsigned ``x``, by an adder for each bit of ``factor`` behind the first: the multipliers of small
    parts are slow unless there are registers inside, and split up where ``x`` has more bits than they have.

    Args:
        factor: at least 0.
    """
    shifted: list[Value] = [Cat(Const(0, bit), x) for bit in range(factor.bit_length()) if factor >> bit & 1]
    while len(shifted) > 1:
        pairs = [a + b for a, b in zip(shifted[::2], shifted[1::2], strict=False)]
        shifted = [*pairs, *shifted[2 * len(pairs) :]]
    return shifted[0] if shifted else Const(0, 1)
