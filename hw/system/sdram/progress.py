"""The state of the sequencer's work: timers, the segment that is in progress and the next one, and a row's command."""

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data

from edgedec.hw.memory.axi import beats_log2
from edgedec.hw.system.sdram.chip import SdramChip

__all__ = ["RowCommand", "Segment", "Timer"]

_AHEAD = 2  # cycles from a decision on conditions to its command


class Timer:
    """A timer of the cycles since its last start. It is queried two cycles before the command that waits for it."""

    def __init__(self, m: Module, longest: int, name: str) -> None:
        self._longest = max(longest - _AHEAD, 1)
        self._left = Signal(self._longest, name=f"{name}_left")  # ones, as many as cycles are left
        m.d.sync += self._left.eq(self._left >> 1)

    def start(self, m: Module, cycles: int | None = None) -> None:
        """Start the timer: it is free ``cycles`` cycles, by default the longest time, after this one, and at least one."""
        ones = self._longest if cycles is None else max(cycles - _AHEAD, 1)
        m.d.sync += self._left.eq((1 << (ones - 1)) - 1)

    def free(self, cycles: int | None = None) -> Value:
        """Return whether the time is over, or whether ``cycles`` cycles have passed of a start with the longest time."""
        passed = self._longest if cycles is None else max(cycles - _AHEAD, 1)
        return ~self._left[self._longest - passed]


class Segment:
    """A segment in progress: ``hit`` if its row is open, ``conflict`` if another row is, neither if no row is."""

    def __init__(self, layout: data.StructLayout, chip: SdramChip, data_bytes: int, name: str) -> None:
        self.work = Signal(layout, name=name)
        self.valid, self.compared, self.checked, self.hit, self.conflict, self.apart, self.last = (
            Signal(name=f"{name}_{state}")
            for state in ("valid", "compared", "checked", "hit", "conflict", "apart", "last")
        )
        words = beats_log2(data_bytes // chip.word_bytes)
        column, address = chip.column_bits - words, self.work.address
        self.in_row = address[:column]
        self.column = Cat(Signal(words, name=f"{name}_zero"), self.in_row)
        self.bank = address[column : column + chip.bank_bits]
        self.row = address[column + chip.bank_bits :]


class RowCommand:
    """A PRECHARGE (``conflict``) or ACTIVATE that waits until it is ``possible``."""

    def __init__(self, chip: SdramChip) -> None:
        self.valid, self.possible, self.after, self.conflict = (
            Signal(name=f"row_{name}") for name in ("valid", "possible", "after", "conflict")
        )
        self.banks = Signal(1 << chip.bank_bits, name="row_banks")
        self.bank = Signal(chip.bank_bits, name="row_bank")
        self.row = Signal(chip.row_bits, name="row_row")
