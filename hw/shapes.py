"""Payloads that components hand to each other."""

from amaranth.hdl import ShapeLike, signed, unsigned
from amaranth.lib import data, stream

__all__ = ["beat", "codes", "maxima", "payload", "roots", "rows", "scales", "sums", "word", "words"]


def payload(signature: stream.Signature) -> ShapeLike:
    """Return the shape of a stream's payload."""
    shape: ShapeLike = signature.members["payload"].shape
    return shape


def beat(beat_bytes: int) -> stream.Signature:
    """Bytes of the read stream, lowest address first."""
    return stream.Signature(data.ArrayLayout(unsigned(8), beat_bytes))


def rows(width: int, slots: int, lanes: int) -> data.ArrayLayout:
    """signed(width) [lanes, slots]: ``lanes`` neighbouring elements of a vector, of each slot's vector."""
    return data.ArrayLayout(data.ArrayLayout(signed(width), slots), lanes)


def word(width: int, slots: int, lanes: int = 1) -> data.StructLayout:
    """Return the layout of ``lanes`` elements of a vector for each slot; ``last`` ends the vector."""
    return data.StructLayout({"values": rows(width, slots, lanes), "last": 1})


def words(width: int, slots: int, lanes: int = 1) -> stream.Signature:
    """A vector for each slot, ``lanes`` elements at a time; lanes behind the vector's end are zero, ``last`` ends it."""
    return stream.Signature(word(width, slots, lanes))


def codes(slots: int, columns: int) -> stream.Signature:
    """int8 activations of a block of ``columns`` neighbouring columns, of each slot; ``last``: of the vector."""
    return stream.Signature(data.StructLayout({"codes": rows(8, slots, columns), "last": 1}))


def sums(slots: int) -> stream.Signature:
    """What is kept of a vector of each slot: its largest absolute value, and its squares (0 where they are not formed).

    ``small``: sum of x * x over the x that fit 18 bits; ``big``: of (x >> 9)**2 over the others.
    """
    u48 = data.ArrayLayout(unsigned(48), slots)
    return stream.Signature(
        data.StructLayout({"absmax": data.ArrayLayout(unsigned(26), slots), "small": u48, "big": u48})
    )


def maxima(slots: int) -> stream.Signature:
    """Largest absolute value of each slot's vector; ``normed``: the root of a norm belongs to it."""
    return stream.Signature(data.StructLayout({"absmax": data.ArrayLayout(unsigned(26), slots), "normed": 1}))


scale = data.StructLayout({"mantissa": unsigned(16), "exponent": signed(8)})  # mantissa * 2**exponent


def roots(slots: int) -> stream.Signature:
    """Root mean square of each slot's vector, but for 1/sqrt(n), as a ``scale``; the mantissa is at least 2**15."""
    return stream.Signature(data.ArrayLayout(scale, slots))


def scales(slots: int) -> stream.Signature:
    """Of each slot's codes; the mantissa is at least 2**15, or mantissa and exponent are 0."""
    return stream.Signature(data.ArrayLayout(scale, slots))
