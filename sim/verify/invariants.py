"""Invariants of components: assertions about their state that make proofs by induction possible.

An induction begins with any state. The invariants exclude those that no run reaches, and are proved by the same induction.
"""

from __future__ import annotations

from collections.abc import Iterable

from amaranth.hdl import Assert, Module, Mux, Value

from edgedec.hw.memory.axi import beats_log2, burst_beats
from edgedec.sim.verify.formal import Inside

__all__ = ["after", "buffered_fifo", "bursts", "ones", "ring", "sync_fifo"]


def ones(bits: Iterable[Value]) -> Value:
    """Return how many of some bits are high."""
    return sum(bits, start=Value.cast(0))


def ring(m: Module, *, begin: Value, end: Value, level: Value, depth: int) -> None:
    """Assert that the indices of a memory of ``depth`` words are ``level`` words apart."""
    m.d.comb += [
        Assert((begin < depth) & (end < depth) & (level <= depth)),
        Assert(Mux(begin + level >= depth, begin + level - depth, begin + level) == end),
    ]


def after(index: Value, steps: Value, depth: int) -> Value:
    """Return the index that many words later, in a memory of ``depth`` words."""
    return Mux(index + steps >= depth, index + steps - depth, index + steps)


def sync_fifo(m: Module, inside: Inside, name: str, depth: int) -> None:
    """Assert the invariants of an ``amaranth.lib.fifo.SyncFIFO`` of two entries or more."""
    names = ("consume", "produce", "level")
    begin, end, level = (inside[f"{name}.{signal}"] for signal in names)
    ring(m, begin=begin, end=end, level=level, depth=depth)


def buffered_fifo(m: Module, inside: Inside, name: str, depth: int) -> None:
    """Assert the invariants of an ``amaranth.lib.fifo.SyncFIFOBuffered`` of three entries or more."""
    names = ("consume", "produce", "inner_level")
    begin, end, level = (inside[f"{name}.{signal}"] for signal in names)
    ring(m, begin=begin, end=end, level=level, depth=depth - 1)


def bursts(
    m: Module, inside: Inside, *, address: Value, length: Value, data_bytes: int, max_burst: int, name: str = ""
) -> None:
    """Assert the invariants of Bursts: what is left begins before its end, and an offered burst lies in one chunk.

    Args:
        address, length: fields ``address`` and ``len`` of the offered burst.
        name: name of the component within ``inside``, with a dot; empty for the component itself.
    """
    size, beats = beats_log2(data_bytes), burst_beats(data_bytes=data_bytes, max_burst=max_burst)
    chunk_bits = size + beats_log2(beats)
    last_byte, offset, valid = (inside[f"{name}{signal}"] for signal in ("last_byte", "offset", "bursts__valid"))
    m.d.comb += [
        Assert(~inside[f"{name}active"] | (last_byte[chunk_bits:] != 0) | (last_byte[size:chunk_bits] >= offset)),
        Assert(~valid | (address[size:chunk_bits] + length < beats)),
        Assert(~valid | (address[:size] == 0)),
    ]
