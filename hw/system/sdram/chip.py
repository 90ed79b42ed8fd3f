"""SDR SDRAM chips as data, and their times in cycles of a clock. Imports no HDL, because models and estimates use it too."""

from dataclasses import dataclass
from math import ceil

from edgedec.errors import UsageError

__all__ = ["IS42S16160G", "SdramChip", "SdramTimes"]


@dataclass(frozen=True, kw_only=True)
class SdramTimes:
    """A chip's limits in cycles of one clock, named as by JEDEC; all are minima, except for refresh_interval.

    Members:
        startup: cycles before the first command.
        refresh_interval: largest average distance of two refreshes (tREFI).
        rcd, rp, rc, ras, rfc, rrd, wr, mrd: tRCD, tRP, tRC, tRAS, tRFC, tRRD, tWR (tDPL), tMRD.
        cas: CAS latency.
    """

    startup: int
    refresh_interval: int
    rcd: int
    rp: int
    rc: int
    ras: int
    rfc: int
    rrd: int
    wr: int
    mrd: int
    cas: int


@dataclass(frozen=True, kw_only=True)
class SdramChip:
    """An SDR SDRAM chip.

    Members:
        bank_bits, row_bits, column_bits: bits of its addresses; a column is a word.
        word_bytes: bytes of its bus.
        rcd_ns ... mrd_ns: its minimum times in ns; startup_ns before the first command.
        refreshes, refresh_ns: number of refreshes in refresh_ns nanoseconds.
        cas: CAS latency in cycles, 2 or 3.
        most_hz: fastest clock with that latency, in Hz.
        source: source of the times.
    """

    name: str
    bank_bits: int = 2
    row_bits: int = 13
    column_bits: int = 9
    word_bytes: int = 2
    rcd_ns: float
    rp_ns: float
    rc_ns: float
    ras_ns: float
    rfc_ns: float
    rrd_ns: float
    wr_ns: float
    mrd_ns: float
    startup_ns: float
    refreshes: int = 8192
    refresh_ns: float = 64e6
    cas: int = 3
    most_hz: float
    source: str

    @property
    def bytes(self) -> int:
        return self.word_bytes << (self.bank_bits + self.row_bits + self.column_bits)

    @property
    def row_bytes(self) -> int:
        return self.word_bytes << self.column_bits

    def times(self, clock_hz: float) -> SdramTimes:
        """Return the times in cycles of a clock, rounded to the safe side.

        Raises:
            UsageError: the clock is too fast or too slow for the chip.
        """
        if not 1e6 <= clock_hz <= self.most_hz:
            raise UsageError(
                f"{self.name} takes a clock of 1 to {self.most_hz / 1e6:g} MHz with CAS latency {self.cas}, "
                f"not {clock_hz / 1e6:g}; choose a slower clock"
            )

        def cycles(ns: float) -> int:
            return max(1, ceil(round(ns * clock_hz * 1e-9, 6)))

        return SdramTimes(
            startup=cycles(self.startup_ns),
            refresh_interval=int(self.refresh_ns / self.refreshes * clock_hz * 1e-9),
            rcd=cycles(self.rcd_ns),
            rp=cycles(self.rp_ns),
            rc=cycles(self.rc_ns),
            ras=cycles(self.ras_ns),
            rfc=cycles(self.rfc_ns),
            rrd=cycles(self.rrd_ns),
            wr=cycles(self.wr_ns),
            mrd=max(2, cycles(self.mrd_ns)),
            cas=self.cas,
        )


IS42S16160G = SdramChip(
    name="IS42S16160G-7",
    rcd_ns=20,
    rp_ns=20,
    rc_ns=63,
    ras_ns=42,
    rfc_ns=70,
    rrd_ns=14,
    wr_ns=15,
    mrd_ns=14,
    startup_ns=200_000,
    most_hz=143e6,
    source="the slowest of what others use for it: litedram, modules.py, IS42S16160 (tRP, tRCD, tRFC); SpinalHDL, "
    "IS42S16160B (tRAS, startup); dicethrow/amaram (tMRD, size); the data sheet was not at hand (check)",
)
