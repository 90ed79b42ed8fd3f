"""Signatures and layouts of the payloads that components exchange."""

from amaranth.hdl import ShapeLike, signed, unsigned
from amaranth.lib import data, stream

__all__ = ["beat", "codes", "maxima", "payload", "roots", "rows", "scales", "word", "words"]


def payload(signature: stream.Signature) -> ShapeLike:
    """Return the shape of a stream's payload."""
    shape: ShapeLike = signature.members["payload"].shape
    return shape


def beat(beat_bytes: int) -> stream.Signature:
    """Return a stream of beats: bytes of the read stream, lowest address first."""
    return stream.Signature(data.ArrayLayout(unsigned(8), beat_bytes))


def rows(width: int, slots: int, lanes: int) -> data.ArrayLayout:
    """Return the layout signed(width) [lanes, slots]: ``lanes`` neighbouring elements of each slot's vector."""
    return data.ArrayLayout(data.ArrayLayout(signed(width), slots), lanes)


def word(width: int, slots: int, lanes: int = 1) -> data.StructLayout:
    """Return the layout of ``lanes`` elements of a vector for each slot; ``last`` ends the vector."""
    return data.StructLayout({"values": rows(width, slots, lanes), "last": 1})


def words(width: int, slots: int, lanes: int = 1) -> stream.Signature:
    """Return a stream of one vector for each slot, ``lanes`` elements at a time.

    Lanes after the end of the vector are zero, and ``last`` marks its last word.
    """
    return stream.Signature(word(width, slots, lanes))


def codes(slots: int, columns: int) -> stream.Signature:
    """Return a stream of int8 activations, ``columns`` neighbouring columns of each slot; ``last`` ends the vector."""
    return stream.Signature(data.StructLayout({"codes": rows(8, slots, columns), "last": 1}))


def maxima(slots: int) -> stream.Signature:
    """Return a stream of each slot's largest absolute value; ``normed`` says that the root of a norm belongs to it."""
    return stream.Signature(data.StructLayout({"absmax": data.ArrayLayout(unsigned(26), slots), "normed": 1}))


scale = data.StructLayout({"mantissa": unsigned(16), "exponent": signed(8)})  # mantissa * 2**exponent


def roots(slots: int) -> stream.Signature:
    """Return a stream of the root of each slot's sum of squares as a ``scale``; the mantissa is at least 2**15."""
    return stream.Signature(data.ArrayLayout(scale, slots))


def scales(slots: int) -> stream.Signature:
    """Return a stream of the scales of each slot's codes; the mantissa is at least 2**15, or both fields are 0."""
    return stream.Signature(data.ArrayLayout(scale, slots))
