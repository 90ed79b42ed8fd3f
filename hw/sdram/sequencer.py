"""The commands of an SDR SDRAM chip, for one segment after another."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out, Signature

from edgedec.hw.axi import beats_log2
from edgedec.hw.pipeline import check
from edgedec.hw.resources import Resources
from edgedec.hw.sdram.chip import SdramChip
from edgedec.hw.sdram.segments import segment_layout

__all__ = ["Sequencer", "estimate", "pins", "work_layout"]

_PRECHARGE_ALL = 1 << 10  # address bit of PRECHARGE
# ras_n, cas_n, we_n
_NOP, _MODE, _REFRESH, _PRECHARGE, _ACTIVATE, _WRITE, _READ = 0b111, 0b000, 0b001, 0b010, 0b011, 0b100, 0b101


def pins(chip: SdramChip) -> Signature:
    """Of the chip, seen from the controller; the clock goes another way, and chip select is low for ever."""
    return Signature(
        {
            "cke": Out(1),
            "ras_n": Out(1, init=1),
            "cas_n": Out(1, init=1),
            "we_n": Out(1, init=1),
            "bank": Out(chip.bank_bits),
            "address": Out(chip.row_bits),
            "mask": Out(chip.word_bytes, init=(1 << chip.word_bytes) - 1),
            "data_out": Out(8 * chip.word_bytes),
            "data_drive": Out(1),
            "data_in": In(8 * chip.word_bytes),
        }
    )


def work_layout(chip: SdramChip, data_bytes: int, ports: int) -> data.StructLayout:
    """A segment, whether it writes, and the port that it is of."""
    members = dict(segment_layout(chip.bytes, data_bytes).members)
    return data.StructLayout({**members, "write": 1, "port": max(1, (ports - 1).bit_length())})


class Sequencer(Component):
    """Rows stay open; while one segment's columns are read or written, the row of the next one is opened, where its bank is
    another one: successive rows are in successive banks. A beat is one column command, of a burst as long as a beat.

    A refresh comes between two beats, at most a beat and the time to close all rows after it is due, whatever is asked for.

    Parameters:
        chip: what is driven.
        clock_hz: of this component, and of the chip.
        data_bytes: of a beat: 4, 8 or 16, a burst of 2, 4 or 8 words.
        ports: that work can be of.
        capture: cycles between a READ's first data at the pins and what a chip without wires would need, 0 to 3.

    Members:
        work: In(stream of ``work_layout``). A segment is taken when its data can be taken or given without a stop.
        write_port: Out. Of which port ``write_data`` and ``write_strobes`` have to be.
        write_data, write_strobes: In(8 * data_bytes, data_bytes). The next beat of that port.
        write_take: Out(1). It was taken.
        written: Out(stream {port, bad}, always ready). The last beat of a burst is on its way to the chip: what is read
            from now on has it.
        read: Out(stream {port, data, bad, last}, always ready). A beat; ``last`` of its burst.
        ready: Out(1). The chip is initialized.
        pins: Out(pins(chip)).

    Latency: of a read in an open row, cas + 7 cycles and the words of a beat.
    Throughput: a beat in data_bytes / 2 cycles.
    Source: JEDEC 21-C, 3.11.5; the limits of edgedec.hw.sdram.chip.
    """

    def __init__(self, *, chip: SdramChip, clock_hz: float, data_bytes: int, ports: int = 4, capture: int = 0) -> None:
        if data_bytes not in (4, 8, 16) or chip.word_bytes != 2:
            raise ValueError(f"data_bytes must be 4, 8 or 16 for a chip of 16 bits, not {data_bytes!r}")
        check("ports", ports, 1, 16)
        check("capture", capture, 0, 3)
        self._chip, self._times, self._data_bytes = chip, chip.times(clock_hz), data_bytes
        self._words = data_bytes // chip.word_bytes
        self._delay = self._times.cas + 2 + capture  # from a decision to the word in ``caught``
        self._work = work_layout(chip, data_bytes, ports)
        number = self._work["port"].shape
        done = data.StructLayout({"port": number, "bad": 1})
        beat = data.StructLayout({"port": number, "data": 8 * data_bytes, "bad": 1, "last": 1})
        super().__init__(
            {
                "work": In(stream.Signature(self._work)),
                "write_port": Out(number),
                "write_data": In(8 * data_bytes),
                "write_strobes": In(data_bytes),
                "write_take": Out(1),
                "written": Out(stream.Signature(done, always_ready=True)),
                "read": Out(stream.Signature(beat, always_ready=True)),
                "ready": Out(1),
                "pins": Out(pins(chip)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        chip, t, words = self._chip, self._times, self._words
        banks = range(1 << chip.bank_bits)
        command, bank, address = Signal(3, init=_NOP), Signal(chip.bank_bits), Signal(chip.row_bits)
        m.d.comb += command.eq(_NOP)
        m.d.sync += [
            Cat(self.pins.we_n, self.pins.cas_n, self.pins.ras_n).eq(command),
            self.pins.bank.eq(bank),
            self.pins.address.eq(address),
            self.pins.cke.eq(1),
        ]
        # Of each bank: what is open, and how long it must be left alone.
        opened, rows = Signal(len(banks)), Array(Signal(chip.row_bits, name=f"row{n}") for n in banks)
        wait = {
            name: [self._timer(m, f"{name}{n}") for n in banks] for name in ("column", "held", "data", "close", "cycle")
        }
        can_precharge = Cat(wait["held"][n].free & wait["data"][n].free for n in banks)
        can_activate = Cat(wait["close"][n].free & wait["cycle"][n].free for n in banks)
        can_column = Cat(wait["column"][n].free for n in banks)
        apart, reads, writes = (self._timer(m, name) for name in ("apart", "reads", "writes"))

        now = _Segment(self._work, chip, self._data_bytes, "now")
        after = _Segment(self._work, chip, self._data_bytes, "after")
        closing, running = Signal(), Signal()  # a refresh is due; no other command
        same, move, column = Signal(), Signal(), Signal()
        m.d.comb += [
            same.eq(now.valid & (now.bank == after.bank)),
            move.eq(after.valid & after.checked & ~now.valid & running & ~closing),
            self.work.ready.eq(~after.valid),
            column.eq(
                now.valid
                & now.hit
                & running
                & ~closing
                & can_column.bit_select(now.bank, 1)
                & Mux(now.work.write, writes.free, reads.free)
            ),
        ]
        self._advance(m, now, after, same, move, opened, rows)
        allowed = running & ~closing
        # Of two that are possible the column goes first, then the row of the segment whose columns are wanted.
        pick = Signal()  # the row command is for ``after``
        m.d.comb += pick.eq(~now.valid | now.hit)
        conflict, closed = Mux(pick, after.conflict, now.conflict), Mux(pick, after.closed, now.closed)
        rows_of, bank_of = Mux(pick, after.row, now.row), Mux(pick, after.bank, now.bank)
        may = allowed & ~column & Mux(pick, after.valid & after.checked & now.valid & ~same, 1)
        precharge, activate = Signal(), Signal()
        m.d.comb += [
            precharge.eq(may & conflict & can_precharge.bit_select(bank_of, 1)),
            activate.eq(may & closed & can_activate.bit_select(bank_of, 1) & apart.free),
        ]
        with m.If(column):
            m.d.comb += [command.eq(Mux(now.work.write, _WRITE, _READ)), bank.eq(now.bank), address.eq(now.column)]
        with m.Else():
            m.d.comb += [bank.eq(bank_of), address.eq(Mux(activate, rows_of, 0))]
            with m.If(precharge):
                m.d.comb += command.eq(_PRECHARGE)
            with m.If(activate):
                m.d.comb += command.eq(_ACTIVATE)
        everything = self._administer(m, command, bank, address, can_precharge, running, closing)

        for n in banks:
            chosen = bank == n
            with m.If(everything | (precharge & chosen)):
                m.d.sync += opened[n].eq(0)
                wait["close"][n].start(m, t.rp)
            with m.If(activate & chosen):
                m.d.sync += [opened[n].eq(1), rows[n].eq(rows_of)]
                wait["column"][n].start(m, t.rcd)
                wait["held"][n].start(m, t.ras)
                wait["cycle"][n].start(m, t.rc)
            with m.If(column & chosen):
                wait["data"][n].start(m, Mux(now.work.write, words - 1 + t.wr, words))
        with m.If(activate):
            apart.start(m, t.rrd)
        with m.If(column):
            reads.start(m, words)
            writes.start(m, Mux(now.work.write, words, t.cas + words + 1))
        with m.If(precharge):
            self._state(m, pick, now, after, "closed")
        with m.If(activate):
            self._state(m, pick, now, after, "hit")
        with m.If(everything):
            m.d.sync += [now.hit.eq(0), now.conflict.eq(0), now.closed.eq(1), after.checked.eq(0)]
        self._column(m, now, column)
        self._write(m, now, column)
        self._read(m, now, column)
        return m

    def _timer(self, m: Module, name: str) -> "_Timer":
        longest = max(self._times.rc, self._times.cas + self._words + 1, self._words + self._times.wr)
        timer = _Timer(longest, name)
        with m.If(~timer.free):
            m.d.sync += [timer.left.eq(timer.left - 1), timer.free.eq(timer.left == 1)]
        return timer

    def _state(self, m: Module, pick: Value, now: "_Segment", after: "_Segment", name: str) -> None:
        for segment, chosen in ((now, ~pick), (after, pick)):
            with m.If(chosen):
                m.d.sync += [getattr(segment, other).eq(other == name) for other in ("hit", "conflict", "closed")]

    def _advance(
        self, m: Module, now: "_Segment", after: "_Segment", same: Value, move: Value, opened: Value, rows: Array
    ) -> None:
        """Work to ``after``, there compared with the rows that are open, or will be by then, to ``now``."""
        with m.If(self.work.valid & ~after.valid):
            m.d.sync += [after.work.eq(self.work.payload), after.valid.eq(1), after.checked.eq(0)]
        is_open, row = same | opened.bit_select(after.bank, 1), Mux(same, now.row, rows[after.bank])
        with m.If(after.valid & ~after.checked):
            m.d.sync += [
                after.checked.eq(1),
                after.hit.eq(is_open & (row == after.row)),
                after.conflict.eq(is_open & (row != after.row)),
                after.closed.eq(~is_open),
            ]
        with m.If(move):
            m.d.sync += [after.valid.eq(0), now.valid.eq(1), now.work.eq(after.work)]
            m.d.sync += [getattr(now, name).eq(getattr(after, name)) for name in ("hit", "conflict", "closed")]

    def _administer(
        self,
        m: Module,
        command: Value,
        bank: Value,
        address: Value,
        can_precharge: Value,
        running: Value,
        closing: Value,
    ) -> Value:
        """The chip's initialization, and refreshes. Gives the cycle in which all rows are closed."""
        t, everything = self._times, Signal()
        mode = beats_log2(self._words) | t.cas << 4
        left, first = Signal(range(max(t.startup, t.rfc, t.mrd) + 1), init=t.startup), Signal(2, init=2)
        due = Signal(range(t.refresh_interval), init=t.refresh_interval - 1)
        m.d.sync += due.eq(Mux(due == 0, t.refresh_interval - 1, due - 1))
        with m.If(due == 0):
            m.d.sync += closing.eq(self.ready)
        waited = Signal()
        m.d.comb += waited.eq(left == 0)
        with m.If(~waited):
            m.d.sync += left.eq(left - 1)
        with m.FSM():
            with m.State("startup"), m.If(waited):
                m.d.comb += everything.eq(1)
                m.next = "refresh"
            with m.State("refresh"), m.If(waited):
                m.d.comb += command.eq(_REFRESH)
                m.d.sync += [left.eq(t.rfc - 1), closing.eq(0), first.eq(Mux(first == 0, 0, first - 1))]
                m.next = "refreshed"
            with m.State("refreshed"), m.If(waited):
                with m.If(self.ready):
                    m.next = "run"
                with m.Elif(first == 0):
                    m.d.comb += [command.eq(_MODE), bank.eq(0), address.eq(mode)]
                    m.d.sync += [left.eq(t.mrd - 1), self.ready.eq(1)]
                with m.Else():
                    m.next = "refresh"
            with m.State("run"):
                m.d.comb += running.eq(1)
                with m.If(closing & can_precharge.all()):
                    m.d.comb += everything.eq(1)
                    m.next = "refresh"
        with m.If(everything):
            m.d.comb += [command.eq(_PRECHARGE), address.eq(_PRECHARGE_ALL)]
            m.d.sync += left.eq(t.rp - 1)
        return everything

    def _column(self, m: Module, now: "_Segment", column: Value) -> None:
        with m.If(column):
            m.d.sync += [now.work.beats.eq(now.work.beats - 1), now.work.address.eq(now.work.address + 1)]
            with m.If(now.work.beats == 1):
                m.d.sync += now.valid.eq(0)

    def _write(self, m: Module, now: "_Segment", column: Value) -> None:
        """A beat's words go out one by one, the first with its command."""
        words, width, lanes = self._words, 8 * self._chip.word_bytes, self._chip.word_bytes
        rest, masks, left = Signal(width * words), Signal(lanes * words), Signal(range(words + 1))
        starts = Signal()
        blocked = self.write_strobes & ~now.work.bad.replicate(self._data_bytes)
        m.d.comb += [
            starts.eq(column & now.work.write),
            self.write_port.eq(now.work.port),
            self.write_take.eq(starts),
        ]
        with m.If(starts):
            m.d.sync += [
                rest.eq(self.write_data[width:]),
                masks.eq(~blocked[lanes:]),
                left.eq(words - 1),
                self.pins.data_out.eq(self.write_data),
                self.pins.mask.eq(~blocked),
                self.pins.data_drive.eq(1),
            ]
        with m.Else():
            m.d.sync += [
                rest.eq(rest[width:]),
                masks.eq(masks[lanes:]),
                left.eq(Mux(left == 0, 0, left - 1)),
                self.pins.data_out.eq(rest),
                # Low in between: READ heeds it two cycles ahead.
                self.pins.mask.eq(Mux(left == 0, Mux(self.ready, 0, -1), masks)),
                self.pins.data_drive.eq(left != 0),
            ]
        m.d.sync += [
            self.written.valid.eq(starts & now.work.final & (now.work.beats == 1)),
            self.written.p.port.eq(now.work.port),
            self.written.p.bad.eq(now.work.bad),
        ]

    def _read(self, m: Module, now: "_Segment", column: Value) -> None:
        """What was asked for goes beside the words through as many registers as these take to come."""
        words, width = self._words, 8 * self._chip.word_bytes
        caught = Signal(width * words)
        m.d.sync += caught.eq(Cat(caught[width:], self.pins.data_in))
        layout = data.StructLayout({"port": self._work["port"].shape, "bad": 1, "last": 1})
        asked, tag = column & ~now.work.write, Signal(layout)
        m.d.comb += [
            tag.port.eq(now.work.port),
            tag.bad.eq(now.work.bad),
            tag.last.eq(now.work.final & (now.work.beats == 1)),
        ]
        for _ in range(self._delay + words - 1):
            later, there = Signal(layout, reset_less=True), Signal()
            m.d.sync += [later.eq(tag), there.eq(asked)]
            tag, asked = later, there
        m.d.comb += [
            self.read.valid.eq(asked),
            self.read.p.data.eq(caught),
            *(self.read.p[name].eq(tag[name]) for name in ("port", "bad", "last")),
        ]


class _Timer:
    """Not before so many cycles have passed since the last start."""

    def __init__(self, longest: int, name: str) -> None:
        self.left, self.free = Signal(range(longest + 1), name=f"{name}_left"), Signal(name=f"{name}_free", init=1)

    def start(self, m: Module, cycles: Any) -> None:
        """``free`` so many cycles after this one, 1 at least."""
        m.d.sync += [self.left.eq(cycles - 1), self.free.eq(cycles == 1)]


class _Segment:
    """What is worked on, and whether its row is the open one, another one is, or none."""

    def __init__(self, layout: data.StructLayout, chip: SdramChip, data_bytes: int, name: str) -> None:
        self.work = Signal(layout, name=name)
        self.valid, self.checked, self.hit, self.conflict, self.closed = (
            Signal(name=f"{name}_{state}") for state in ("valid", "checked", "hit", "conflict", "closed")
        )
        words = beats_log2(data_bytes // chip.word_bytes)
        column, address = chip.column_bits - words, self.work.address
        self.column = Cat(Signal(words, name=f"{name}_zero"), address[:column])
        self.bank = address[column : column + chip.bank_bits]
        self.row = address[column + chip.bank_bits :]


def estimate(*, chip: SdramChip, clock_hz: float, data_bytes: int) -> Resources:
    """Of one Sequencer; not calibrated yet."""
    banks, bits = 1 << chip.bank_bits, beats_log2(chip.bytes // data_bytes)
    timers = (5 * banks + 3) * 5
    return Resources(
        lut=timers + banks * chip.row_bits + 3 * chip.row_bits + 8 * data_bytes + 60 + bits,
        ff=timers + banks * (chip.row_bits + 1) + 2 * (bits + 20) + 17 * data_bytes + 60 + 4 * chip.times(clock_hz).cas,
    )
