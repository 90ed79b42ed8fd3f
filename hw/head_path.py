"""The head: logits to the likeliest tokens, and to whole rows where they are wanted."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.hw import collector, serializer
from edgedec.hw import top_k as search
from edgedec.hw.collector import Collector
from edgedec.hw.config import ROWS
from edgedec.hw.pipeline import check, fork
from edgedec.hw.resources import Resources
from edgedec.hw.serializer import Serializer
from edgedec.hw.shapes import beat, scales, words
from edgedec.hw.top_k import ID_BITS, TopK

__all__ = ["PIECE_BEATS", "RESULT_BYTES", "ROWS_OFFSET", "HeadPath", "estimate", "output_requests", "vocabulary"]

RESULT_BYTES = 8  # of a slot: a scale, or a logit and its id
ROWS_OFFSET = 4096  # bytes from the results to the rows
PIECE_BEATS = 32  # of a request at most
_LOGIT_BYTES = 4
_BITS = 8 * _LOGIT_BYTES
_LEFT_BITS = ID_BITS + 6  # bytes of the rows of all ids


def vocabulary() -> data.StructLayout:
    """first: id of the first logit. elements: logits that count, at least 1."""
    return data.StructLayout({"first": unsigned(ID_BITS), "elements": unsigned(ID_BITS)})


def output_requests() -> stream.Signature:
    """Bytes to write, ``offset`` bytes from the output's address on."""
    return stream.Signature(data.StructLayout({"offset": unsigned(32), "bytes": unsigned(32)}))


def row_lanes(slots: int) -> int:
    """Logits of an id in a row: the slots, rounded up to a power of two."""
    return 1 << (slots - 1).bit_length()


class HeadPath(Component):
    """What is written of each vector, little endian:

        first the rows, if wanted, from 4096 on: of each id, from ``first`` on, s32 [slots rounded up to a power of two]
        then the results, from 0 on: [slots] x {u16 mantissa, s16 exponent, u32 0}, and of the k likeliest, in order,
            [slots] x {s32 logit, u32 id}

    Requests are cut into pieces, and none is made before its first beat is there: a vector that is announced long before
    its logits come keeps nobody else from writing.

    Parameters:
        slots: 1 to 8.
        top_k: 1 to 64; the results must end before the rows.
        port_bytes: of a beat, 4, 8, 16, 32 or 64.

    Members:
        vectors: In(stream vocabulary()). One per vector of logits. Taken when the one before is written.
        rows_wanted: In(1). Steady from a vector on until it is written.
        input: In(words(32, slots)). ``last`` is not looked at: ``elements`` end the vector, lanes behind them are dropped.
        scales: In(stream scales(slots)). One per vector: of the codes that were multiplied.
        requests: Out(output_requests()). At most 32 beats each; the offset is a multiple of that.
        data: Out(beat(port_bytes)). The beats of each request; bytes behind its end may be anything.
        idle: Out(1). No vector is in work or offered.

    Latency: 6 cycles from the last logit to the first result if nothing stops it.
    Throughput: an id per cycle; with rows 32 of 33 cycles give an id, or a beat if an id is longer than that.
    Source: docs/integer-profile.md, "Head".
    """

    def __init__(self, *, slots: int, top_k: int, port_bytes: int) -> None:
        check("slots", slots, 1, 8)
        check("top_k", top_k, 1, 64)
        if port_bytes not in (4, 8, 16, 32, 64):
            raise ValueError(f"port_bytes must be 4, 8, 16, 32 or 64, not {port_bytes!r}")
        most = ROWS_OFFSET // RESULT_BYTES // slots - 1
        if top_k > most:
            raise ValueError(f"top_k must be at most {most} with {slots} slots, not {top_k!r}")
        self._slots, self._k, self._port_bytes = slots, top_k, port_bytes
        super().__init__(
            {
                "vectors": In(stream.Signature(vocabulary())),
                "rows_wanted": In(1),
                "input": In(words(_BITS, slots, ROWS)),
                "scales": In(scales(slots)),
                "requests": Out(output_requests()),
                "data": Out(beat(port_bytes)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        slots, lanes = self._slots, self._port_bytes // _LOGIT_BYTES
        m.submodules.serializer = serializer = Serializer(width=_BITS, slots=slots, lanes=ROWS)
        m.submodules.top = top = TopK(slots=slots, k=self._k)
        m.submodules.rows = rows = Collector(width=_BITS, slots=1, lanes=lanes, in_lanes=row_lanes(slots))
        m.submodules.results = results = Collector(width=_BITS, slots=1, lanes=lanes, in_lanes=2)
        connect(m, flipped(self.input), serializer.input)
        wanted, name = Signal(), Signal(ID_BITS)  # rows of this vector; id of the next logit
        self._number(m, serializer, top, rows, wanted, name)
        self._collect_results(m, top, results)
        self._write(m, serializer, rows.output, results.output, wanted, name)
        return m

    def _number(self, m: Module, serializer: Any, top: Any, rows: Any, wanted: Signal, name: Signal) -> None:
        """Each id's logits to the search and, if wanted, to the rows."""
        shape = words(_BITS, self._slots, 1)
        searched, written = shape.create(), shape.create()
        fork(m, serializer.output, [searched, written])
        with m.If(serializer.output.valid & serializer.output.ready):
            m.d.sync += name.eq(name + 1)
        kept = written.p["values"][0]
        m.d.comb += [
            top.input.p.logits.eq(searched.p["values"][0]),
            top.input.p.last.eq(searched.p.last),
            top.input.p.id.eq(name),
            top.input.valid.eq(searched.valid),
            searched.ready.eq(top.input.ready),
            *(rows.input.p["values"][slot][0].eq(kept[slot]) for slot in range(self._slots)),
            rows.input.p.last.eq(written.p.last),
            rows.input.valid.eq(written.valid & wanted),
            written.ready.eq(rows.input.ready | ~wanted),
        ]

    def _collect_results(self, m: Module, top: Any, results: Any) -> None:
        """The scales, then the likeliest, slot by slot."""
        slot, scaled, ended = Signal(range(self._slots)), Signal(), Signal()  # scaled: the vector's scales are given
        sink, best, exponent = results.input, top.output, Signal(signed(16))
        m.d.comb += [
            exponent.eq(self.scales.payload[slot].exponent),
            ended.eq(slot == self._slots - 1),
            sink.valid.eq(Mux(scaled, best.valid, self.scales.valid)),
            sink.p["values"][0][0].eq(
                Mux(scaled, best.p.logits[slot], Cat(self.scales.payload[slot].mantissa, exponent))
            ),
            sink.p["values"][1][0].eq(Mux(scaled, best.p.ids[slot], 0)),
            sink.p.last.eq(scaled & ended & best.p.last),
            self.scales.ready.eq(~scaled & ended & sink.ready),
            best.ready.eq(scaled & ended & sink.ready),
        ]
        with m.If(sink.valid & sink.ready):
            m.d.sync += slot.eq(Mux(ended, 0, slot + 1))
            with m.If(ended):
                m.d.sync += scaled.eq(~sink.p.last)

    def _write(self, m: Module, serializer: Any, rows: Any, results: Any, wanted: Signal, name: Signal) -> None:
        """Requests and beats: rows first, then results."""
        announced, piece = self.vectors.p, PIECE_BEATS * self._port_bytes
        whole = RESULT_BYTES * self._slots * (self._k + 1)
        offset, left = Signal(32), Signal(_LEFT_BITS)  # of the next request; bytes from there on
        open_, index, ends = Signal(), Signal(range(PIECE_BEATS)), Signal()  # open: a request is made, its beats follow
        chosen = words(_BITS, 1, self._port_bytes // _LOGIT_BYTES).create()
        m.d.comb += [
            self.requests.valid.eq(chosen.valid & ~open_),
            self.requests.p.offset.eq(offset),
            self.requests.p.bytes.eq(Mux(left < piece, left, piece)),
            self.data.valid.eq(chosen.valid & open_),
            self.data.payload.eq(chosen.p["values"].as_value()),
            chosen.ready.eq(self.data.ready & open_),
            ends.eq(chosen.valid & chosen.ready & chosen.p.last),
        ]
        with m.If(self.requests.valid & self.requests.ready):
            m.d.sync += open_.eq(1)
        with m.If(chosen.valid & chosen.ready):
            m.d.sync += index.eq(index + 1)
            with m.If((index == PIECE_BEATS - 1) | chosen.p.last):
                m.d.sync += [open_.eq(0), index.eq(0), offset.eq(offset + piece), left.eq(left - piece)]
        with m.FSM():
            with m.State("idle"):
                m.d.comb += [
                    serializer.counts.payload.eq(announced.elements),
                    serializer.counts.valid.eq(self.vectors.valid),
                    self.vectors.ready.eq(serializer.counts.ready),
                    self.idle.eq(~self.vectors.valid),
                ]
                m.d.sync += [offset.eq(0), left.eq(whole), wanted.eq(self.rows_wanted), name.eq(announced.first)]
                with m.If(self.rows_wanted):
                    row = _LOGIT_BYTES * row_lanes(self._slots)
                    m.d.sync += [offset.eq(ROWS_OFFSET), left.eq(announced.elements << (row.bit_length() - 1))]
                with m.If(self.vectors.valid & self.vectors.ready):
                    m.next = "results"
                    with m.If(self.rows_wanted):
                        m.next = "rows"
            with m.State("rows"):
                connect(m, rows, flipped(chosen))
                with m.If(ends):
                    m.d.sync += [offset.eq(0), left.eq(whole)]
                    m.next = "results"
            with m.State("results"):
                connect(m, results, flipped(chosen))
                with m.If(ends):
                    m.next = "idle"


def estimate(*, slots: int, top_k: int, port_bytes: int) -> Resources:
    """Of a HeadPath with these parameters: its parts, and requests that were not calibrated."""
    lanes = port_bytes // _LOGIT_BYTES
    return (
        serializer.estimate(width=_BITS, slots=slots, lanes=ROWS)
        + search.estimate(slots=slots, k=top_k)
        + collector.estimate(width=_BITS, slots=1, lanes=lanes, in_lanes=row_lanes(slots))
        + collector.estimate(width=_BITS, slots=1, lanes=lanes, in_lanes=2)
        + Resources(lut=8 * port_bytes + 2 * _BITS * slots + 3 * _LEFT_BITS + 40, ff=32 + _LEFT_BITS + ID_BITS + 16)
    )
