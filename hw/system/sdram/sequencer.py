"""The commands of an SDR SDRAM chip for one segment after another."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, Signature
from amaranth.utils import exact_log2

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.isa.registers import CAPTURE_PHASES, NOMINAL_PHASE, PHASES_OF_A_CYCLE
from edgedec.hw.memory.axi import beats_log2
from edgedec.hw.system.sdram.chip import SdramChip
from edgedec.hw.system.sdram.progress import RowCommand, Segment, Timer
from edgedec.hw.system.sdram.segments import segment_layout

__all__ = ["Sequencer", "pins", "work_layout"]

_PRECHARGE_ALL = 1 << 10  # address bit of PRECHARGE
# Values of (ras_n, cas_n, we_n) of the commands.
_NOP, _MODE, _REFRESH, _PRECHARGE, _ACTIVATE, _WRITE, _READ = 0b111, 0b000, 0b001, 0b010, 0b011, 0b100, 0b101


def pins(chip: SdramChip) -> Signature:
    """Return the pins of the chip, seen from the controller, without the clock and chip select, which is always low.

    ``data_in`` has the data pins as they were at the beginning of a cycle, and a quarter, a half and three quarters of a
    cycle later.
    """
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
            "data_in": In(8 * chip.word_bytes * PHASES_OF_A_CYCLE),
        }
    )


def work_layout(chip: SdramChip, data_bytes: int, ports: int) -> data.StructLayout:
    """Return the layout of a segment with its direction and its port."""
    members = dict(segment_layout(chip.bytes, data_bytes).members)
    return data.StructLayout({**members, "write": 1, "port": max(1, (ports - 1).bit_length())})


class Sequencer(CostedComponent):
    """Read and write segments.

    Rows stay open, and while the columns of one segment are accessed, the row of the next one is opened if it is in another
    bank: successive rows are in successive banks. A beat is one column command, with a burst as long as a beat.

    A refresh comes between two beats, at most one beat and the time to close all rows after it is due, whatever the
    work is.

    Every decision is a register, derived from registered conditions one or two cycles before its command; limits of the
    chip are counted from there, so that this costs no time.

    Parameters:
        chip: the chip.
        clock_hz: clock of this component and of the chip in Hz.
        data_bytes: bytes of a beat: 4, 8 or 16, a burst of 2, 4 or 8 words.
        ports: number of ports that issue work.
        registers: registers at the pins, outwards and inwards together, 0 to 7.

    Members:
        phase: In(4). Quarters of a cycle by which data is captured later than a cycle before NOMINAL_PHASE, at which a chip
            without wire delays is captured. It may change only while nothing reads.
        work: In(stream of ``work_layout``). A segment must be issued only if its data can be transferred without a
            stall.
        write_take: Out(ports). One-hot; the next beat of this port is taken.
        write_data, write_strobes: In. The beat and its strobes, of 8 * data_bytes and data_bytes bits.
        written: Out(stream {port, bad}, always ready). The last beat of a burst is on its way to the chip: later reads
            see it.
        read: Out(stream {port, data, bad, last}, always ready). A beat; ``last`` ends its burst.
        ready: Out(1). The chip is initialized.
        pins: Out(pins(chip)).

    Latency: cas + 11 cycles, the registers at the pins and the words of a beat for a read in an open row.
    Throughput: one beat in data_bytes / 2 cycles.
    Source: JEDEC 21-C, 3.11.5; the limits of edgedec.hw.system.sdram.chip.
    """

    def __init__(
        self, *, chip: SdramChip, clock_hz: float, data_bytes: int, ports: int = 4, registers: int = 0
    ) -> None:
        if data_bytes not in (4, 8, 16) or chip.word_bytes != 2:
            raise ValueError(f"data_bytes must be 4, 8 or 16 for a chip of 16 bits, not {data_bytes!r}")
        check("ports", ports, 1, 16)
        check("registers", registers, 0, 7)
        self._chip, self._times, self._data_bytes = chip, chip.times(clock_hz), data_bytes
        self._words = data_bytes // chip.word_bytes
        early = NOMINAL_PHASE // PHASES_OF_A_CYCLE
        self._delay = self._times.cas + 3 + registers - early  # from ``column`` to the earliest word in ``caught``
        self._work, self._ports = work_layout(chip, data_bytes, ports), ports
        number = self._work["port"].shape
        done = data.StructLayout({"port": number, "bad": 1})
        beat = data.StructLayout({"port": number, "data": 8 * data_bytes, "bad": 1, "last": 1})
        super().__init__(
            lambda: {
                "phase": In(range(CAPTURE_PHASES), init=NOMINAL_PHASE),
                "work": In(stream.Signature(self._work)),
                "write_data": In(8 * data_bytes),
                "write_strobes": In(data_bytes),
                "write_take": Out(ports),
                "written": Out(stream.Signature(done, always_ready=True)),
                "read": Out(stream.Signature(beat, always_ready=True)),
                "ready": Out(1),
                "pins": Out(pins(chip)),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; not calibrated."""
        chip, data_bytes = self._chip, self._data_bytes
        banks, bits = 1 << chip.bank_bits, beats_log2(chip.bytes // data_bytes)
        timers = (5 * banks + 3) * 5
        rows = banks * (chip.row_bits + 1)
        return Resources(
            lut=timers + banks * chip.row_bits + 3 * chip.row_bits + 8 * data_bytes + 110 + bits,
            ff=timers + rows + 2 * (bits + 20) + 17 * data_bytes + 75 + 4 * self._times.cas,
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        chip, t, words = self._chip, self._times, self._words
        banks = range(1 << chip.bank_bits)
        # State of each bank: its open row, and timers of the chip's limits.
        opened = Signal(len(banks))
        rows = Array(Signal(chip.row_bits, name=f"row{n}") for n in banks)
        active = [Timer(m, max(t.rcd, t.ras, t.rc), f"active{n}") for n in banks]
        closed = [Timer(m, t.rp, f"closed{n}") for n in banks]
        used = [Timer(m, max(words, words - 1 + t.wr), f"used{n}") for n in banks]
        apart, reads = Timer(m, t.rrd, "apart"), Timer(m, words + 1, "reads")
        writes = Timer(m, t.cas + words + 2, "writes")
        can_precharge = Signal(len(banks))
        can_activate = Signal(len(banks))
        m.d.sync += [
            can_precharge.eq(Cat(active[n].free(t.ras) & used[n].free() for n in banks)),
            can_activate.eq(Cat(active[n].free(t.rc) & closed[n].free() & apart.free() for n in banks)),
        ]
        can_column = Cat(active[n].free(t.rcd) for n in banks)

        now = Segment(self._work, chip, self._data_bytes, "now")
        after = Segment(self._work, chip, self._data_bytes, "after")
        row = RowCommand(chip)
        closing = Signal()  # a refresh is due
        allowed = Signal()  # commands of segments may be decided
        coming = Signal()
        column = Signal()
        finished = Signal()
        move = Signal()
        everything = Signal()
        # ``finished`` accompanies the last column of a segment
        now_ready = Signal()
        after_ready = Signal()
        m.d.comb += [
            coming.eq(now_ready & ~column & Mux(now.work.write, writes.free(), reads.free())),
            move.eq(after.checked & ~closing & ~(row.valid & row.after) & (~now.valid | finished)),
            self.work.ready.eq(~after.valid),
        ]
        # Two columns are never adjacent, because a beat has at least two words.
        m.d.sync += [
            column.eq(coming),
            finished.eq(coming & now.last),
            after_ready.eq(after.checked & after.hit & allowed & can_column.bit_select(after.bank, 1) & ~move),
            now_ready.eq(allowed & Mux(move, after_ready, now.hit & can_column.bit_select(now.bank, 1) & ~finished)),
        ]
        self._advance(m, now, after, move, finished, column, opened, rows)
        fire = self._row_command(m, row, now, after, allowed, column, can_precharge, can_activate)
        administered = self._administer(m, can_precharge, allowed, closing, everything)

        for n in banks:
            selected = fire & row.banks[n]
            with m.If(selected & row.conflict):
                m.d.sync += opened[n].eq(0)
                closed[n].start(m, t.rp)
            with m.If(selected & ~row.conflict):
                m.d.sync += [opened[n].eq(1), rows[n].eq(row.row)]
                active[n].start(m)
            with m.If(column & (now.bank == n)):
                with m.If(now.work.write):
                    used[n].start(m, words - 1 + t.wr)
                with m.Else():
                    used[n].start(m, words)
        with m.If(fire & ~row.conflict):
            apart.start(m, t.rrd)
        with m.If(column):
            reads.start(m, words + 1)
            with m.If(now.work.write):
                writes.start(m, words + 1)
            with m.Else():
                writes.start(m, t.cas + words + 2)
        for segment, selected in ((now, ~row.after), (after, row.after)):
            with m.If(fire & selected):
                m.d.sync += [segment.conflict.eq(0), segment.hit.eq(~row.conflict)]
        with m.If(everything):
            m.d.sync += [opened.eq(0), now.hit.eq(0), now.conflict.eq(0), after.checked.eq(0), after.compared.eq(0)]
        self._command(m, now, column, row, fire, administered)
        self._write(m, now, column)
        self._read(m, now, column)
        return m

    def _advance(
        self,
        m: Module,
        now: Segment,
        after: Segment,
        move: Value,
        finished: Value,
        column: Value,
        opened: Value,
        rows: Array,
    ) -> None:
        """Move work to ``after``, compare it with the rows that are or will be open, and move it to ``now``."""
        with m.If(self.work.valid & ~after.valid):
            m.d.sync += [after.work.eq(self.work.payload), after.valid.eq(1)]
        # The rows are those that this segment meets once the one before has opened its own.
        is_open = Signal()
        row = Signal(self._chip.row_bits)
        m.d.sync += [
            after.compared.eq(after.valid & ~after.compared & ~after.checked & (~now.valid | now.hit)),
            is_open.eq(opened.bit_select(after.bank, 1)),
            row.eq(rows[after.bank]),
            after.apart.eq(after.bank != now.bank),
            after.last.eq(after.work.beats == 1),
        ]
        with m.If(after.compared):
            m.d.sync += [
                after.checked.eq(1),
                after.hit.eq(is_open & (row == after.row)),
                after.conflict.eq(is_open & (row != after.row)),
            ]
        beats, columns = now.work.beats, now.work.address[: len(now.in_row)]
        with m.If(move):
            m.d.sync += [after.valid.eq(0), after.checked.eq(0), after.compared.eq(0), now.valid.eq(1)]
            m.d.sync += [now.work.eq(after.work)]
            m.d.sync += [getattr(now, name).eq(getattr(after, name)) for name in ("hit", "conflict", "last")]
        with m.Elif(finished):
            m.d.sync += [now.valid.eq(0), now.hit.eq(0)]
        with m.Elif(column):
            # A segment ends before its row ends.
            m.d.sync += [beats.eq(beats - 1), columns.eq(columns + 1), now.last.eq(beats == 2)]

    def _row_command(
        self,
        m: Module,
        row: RowCommand,
        now: Segment,
        after: Segment,
        allowed: Value,
        column: Value,
        can_precharge: Value,
        can_activate: Value,
    ) -> Value:
        """Issue the row commands of the current segment, then those of the next one. Return the cycle of the command."""
        fire = Signal()
        possible = Signal()
        for_after = after.checked & ~after.hit & after.apart & now.valid & now.hit & ~now.last
        m.d.comb += [
            fire.eq(row.possible & ~column),
            possible.eq((row.banks & Mux(row.conflict, can_precharge, can_activate)).any()),
        ]
        with m.If(~row.valid):
            bank = Mux(now.hit, after.bank, now.bank)
            m.d.sync += [
                row.valid.eq(allowed & ((now.valid & ~now.hit) | for_after)),
                row.after.eq(now.hit),
                row.banks.eq(Cat(bank == n for n in range(len(row.banks)))),
                row.bank.eq(bank),
                row.row.eq(Mux(now.hit, after.row, now.row)),
                row.conflict.eq(Mux(now.hit, after.conflict, now.conflict)),
            ]
        with m.Elif(fire | (~allowed & ~row.possible)):
            m.d.sync += row.valid.eq(0)
        with m.If(~row.possible):
            m.d.sync += row.possible.eq(row.valid & allowed & possible)
        with m.Elif(fire):
            m.d.sync += row.possible.eq(0)
        return fire

    def _administer(
        self, m: Module, can_precharge: Value, allowed: Value, closing: Value, everything: Value
    ) -> tuple[Value, Value]:
        """Initialize the chip and refresh it; ``everything`` says that all rows are closed.

        Return the command, one cycle late, and whether its address is a mode, else the flag of all banks.
        """
        t = self._times
        command = Signal(3, init=_NOP)
        mode = Signal()
        m.d.sync += [command.eq(_NOP), mode.eq(0)]
        # These counters end when they are negative.
        booting = Signal(t.startup.bit_length() + 1, init=max(t.startup - 3, 0))
        left = Signal(max(t.rfc, t.mrd, t.rp).bit_length() + 1)
        due = Signal(t.refresh_interval.bit_length() + 1, init=t.refresh_interval - 2)
        first = Signal(2, init=2)
        quiet = Signal(3)
        m.d.sync += [due.eq(Mux(due[-1], t.refresh_interval - 2, due - 1)), quiet.eq(Cat(closing, quiet))]
        with m.If(due[-1] & self.ready):
            m.d.sync += [closing.eq(1), allowed.eq(0)]
        with m.If(~booting[-1]):
            m.d.sync += booting.eq(booting - 1)
        waited = left[-1]
        with m.If(~waited):
            m.d.sync += left.eq(left - 1)

        def wait(cycles: int) -> Value:
            """Return the value of ``left`` for a wait of ``cycles`` cycles after this one."""
            return Const(max(cycles - 2, -1), len(left))

        with m.FSM():
            with m.State("startup"), m.If(booting[-1]):
                m.d.comb += everything.eq(1)
                m.next = "refresh"
            with m.State("refresh"), m.If(waited):
                m.d.sync += [command.eq(_REFRESH), closing.eq(0), quiet.eq(0)]
                m.d.sync += [left.eq(Mux(self.ready, wait(t.rfc - 2), wait(t.rfc))), first.eq(first - first.any())]
                m.next = "refreshed"
            with m.State("refreshed"), m.If(waited):
                with m.If(self.ready):
                    m.d.sync += allowed.eq(1)
                    m.next = "run"
                with m.Elif(first == 0):
                    m.d.sync += [command.eq(_MODE), mode.eq(1), left.eq(wait(t.mrd - 2)), self.ready.eq(1)]
                with m.Else():
                    m.next = "refresh"
            # Commands that were decided before ``closing`` are finished by now.
            with m.State("run"), m.If(quiet[-1] & can_precharge.all()):
                m.d.comb += everything.eq(1)
                m.next = "refresh"
        with m.If(everything):
            m.d.sync += [command.eq(_PRECHARGE), left.eq(wait(t.rp))]
        return command, mode

    def _command(
        self,
        m: Module,
        now: Segment,
        column: Value,
        row: RowCommand,
        fire: Value,
        administered: tuple[Value, Value],
    ) -> None:
        """Drive the pins, two registers after the decision."""
        command = Signal(3, init=_NOP)
        bank = Signal(self._chip.bank_bits)
        address = Signal(self._chip.row_bits)
        other = Signal(self._chip.row_bits)
        mode = self._times.cas << 4
        activate = fire & ~row.conflict
        m.d.sync += [
            bank.eq(Mux(column, now.bank, row.bank)),
            address.eq(Mux(column, now.column, Mux(activate, row.row, 0))),
            command.eq(administered[0]),
            other.eq(Mux(administered[1], mode | beats_log2(self._words), _PRECHARGE_ALL)),
        ]
        theirs = Signal()
        m.d.sync += theirs.eq(administered[0] != _NOP)
        with m.If(column):
            m.d.sync += command.eq(Mux(now.work.write, _WRITE, _READ))
        with m.Elif(fire):
            m.d.sync += command.eq(Mux(row.conflict, _PRECHARGE, _ACTIVATE))
        m.d.sync += [
            Cat(self.pins.we_n, self.pins.cas_n, self.pins.ras_n).eq(command),
            self.pins.bank.eq(Mux(theirs, 0, bank)),
            self.pins.address.eq(Mux(theirs, other, address)),
            self.pins.cke.eq(1),
        ]

    def _write(self, m: Module, now: Segment, column: Value) -> None:
        """Send the words of a beat one by one, the first with its command."""
        words, width, lanes = self._words, 8 * self._chip.word_bytes, self._chip.word_bytes
        rest = Signal(width * words)
        masks = Signal(lanes * words)
        going = Signal(words)
        starts = Signal()
        bad = Signal()
        strobes = self.write_strobes
        m.d.sync += [
            starts.eq(column & now.work.write),
            bad.eq(now.work.bad),
            self.write_take.eq(Cat(column & now.work.write & (now.work.port == n) for n in range(self._ports))),
        ]
        blocked = strobes & ~bad.replicate(self._data_bytes)
        with m.If(starts):
            m.d.sync += [
                rest.eq(self.write_data[width:]),
                masks.eq(~blocked[lanes:]),
                going.eq((1 << (words - 1)) - 1),
                self.pins.data_out.eq(self.write_data),
                self.pins.mask.eq(~blocked),
            ]
        with m.Else():
            m.d.sync += [
                rest.eq(rest[width:]),
                masks.eq(masks[lanes:]),
                going.eq(going[1:]),
                self.pins.data_out.eq(rest),
                # Low between beats, because READ samples it two cycles ahead.
                self.pins.mask.eq(Mux(going[0], masks, (~self.ready).replicate(lanes))),
            ]
        m.d.sync += [
            self.pins.data_drive.eq(starts | going[0]),
            self.written.valid.eq(column & now.work.write & now.work.final & now.last),
            self.written.p.port.eq(now.work.port),
            self.written.p.bad.eq(now.work.bad),
        ]

    def _read(self, m: Module, now: Segment, column: Value) -> None:
        """Delay the tag of a READ by as many registers as its words take to arrive."""
        words, width = self._words, 8 * self._chip.word_bytes
        caught = Signal(width * words)
        quarter, cycles = self.phase[: exact_log2(PHASES_OF_A_CYCLE)], self.phase[exact_log2(PHASES_OF_A_CYCLE) :]
        m.d.sync += caught.eq(Cat(caught[width:], self.pins.data_in.word_select(quarter, width)))
        layout = data.StructLayout({"port": self._work["port"].shape, "bad": 1, "last": 1})
        request = column & ~now.work.write
        tag = Signal(layout)
        m.d.comb += [tag.port.eq(now.work.port), tag.bad.eq(now.work.bad), tag.last.eq(now.work.final & now.last)]
        stages = [Cat(request, tag)]
        for _ in range(self._delay + words - 1 + (CAPTURE_PHASES - 1) // PHASES_OF_A_CYCLE):
            later = Signal(layout, reset_less=True)
            request_later = Signal()
            m.d.sync += Cat(request_later, later).eq(stages[-1])
            stages.append(Cat(request_later, later))
        chosen = Signal(layout)
        m.d.comb += [
            Cat(self.read.valid, chosen).eq(Array(stages[self._delay + words - 1 :])[cycles]),
            self.read.p.data.eq(caught),
            *(self.read.p[name].eq(chosen[name]) for name in ("port", "bad", "last")),
        ]
