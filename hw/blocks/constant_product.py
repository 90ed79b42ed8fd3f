"""Products with a small constant, formed without a multiplier."""

from amaranth.hdl import Cat, Const, Value

__all__ = ["product"]


def product(x: Value, factor: int) -> Value:
    """Return ``x * factor`` for unsigned ``x``, built from one adder for each set bit of ``factor`` after the first.

    The multipliers of small parts are slow unless their internal registers are used, and an ``x`` that is wider than
    their inputs is split over several of them.

    Args:
        factor: the constant, at least 0.
    """
    shifted: list[Value] = [Cat(Const(0, bit), x) for bit in range(factor.bit_length()) if factor >> bit & 1]
    while len(shifted) > 1:
        pairs = [a + b for a, b in zip(shifted[::2], shifted[1::2], strict=False)]
        shifted = [*pairs, *shifted[2 * len(pairs) :]]
    return shifted[0] if shifted else Const(0, 1)
