"""A board as data: resources of its device, memory, clocks and host, each figure with its source."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from edgedec.errors import UsageError

__all__ = ["FAMILIES", "MEMORY_MODELS", "RESOURCES", "USABLE", "Board", "Family"]

RESOURCES = ("lut", "ff", "bram36", "uram", "dsp")  # names of the resources of a device
# Usable shares of the resources. Accelerators that others placed on the KV260 take 84 and 87 % of the LUTs (TeLLMe v2,
# PD-Swap).
USABLE: Mapping[str, float] = MappingProxyType({"lut": 0.75, "bram36": 0.75, "uram": 48 / 64, "dsp": 0.65})
MEMORY_MODELS = ("KV260",)  # names of the sets of edgedec.sim.ddr.parameters that were fitted to a board
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MOST_SHOWN = 80  # characters of a wrong value in a message
_LONGEST_TEXT = 500  # characters of a text member
_BRAM36_BYTES = 4096  # bytes of a block RAM without the ninth bit of each byte


@dataclass(frozen=True, kw_only=True)
class Family:
    """Conversion of resources estimated for UltraScale+ to the devices of a family.

    Members:
        name: value of Board.family.
        lut_of: LUTs that replace one LUT6, by the path of a part, "" for all others.
        dsp_of: multipliers that replace one DSP48E2, likewise.
        multiplier_bits: bits of the wider operand of a multiplier, signed.
        packs: True if multipliers have registers and adders before and after them that the vendor's tool uses.
        reads_old: True if the tools need no logic for a read of the address that is written in the same cycle to give the
            old value.
        source: source of these figures.
    """

    name: str
    lut_of: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({"": 1.0}))
    dsp_of: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({"": 1}))
    multiplier_bits: int = 27
    packs: bool = True
    reads_old: bool = True
    source: str


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            Family(name="zynq-ultrascale+", source="the device family that the formulas were calibrated against"),
            Family(
                name="zynq-7000",
                multiplier_bits=25,
                source="assumed: it has the LUT6; DSP48E1: UG479",
            ),
            # An adder takes about one LUT per bit, a LUT6 of logic up to four LUT4, a memory in LUTs six times as many.
            # The named parts were synthesized; the others have the most frequent ratio. A multiplier has 18 x 18 bits.
            Family(
                name="ecp5",
                lut_of=MappingProxyType(
                    {
                        "": 1.9,
                        "router": 4.3,
                        "datapath.matrix.engine": 2.8,
                        "datapath.mac": 1.05,
                        "datapath.residual": 1.4,
                        "datapath.logits": 1.6,
                    }
                ),
                dsp_of=MappingProxyType({"": 2, "datapath.mac": 1, "datapath.attention.rotary": 1}),
                multiplier_bits=18,
                packs=False,
                reads_old=False,
                source="python -m benchmarks.accelerator.resources --family ecp5",
            ),
        )
    }
)


@dataclass(frozen=True, kw_only=True)
class Board:
    """A board. A member that is None or empty is absent or unknown; ``sources`` may say which.

    Members:
        name: name for ``--board``, lower case with dashes.
        title: the vendor's name of the board.
        part: ordering name of the device, as the vendor's tools take it.
        family: one of FAMILIES.
        has: amount of each of RESOURCES; bram36 counts pairs of RAMs of 18 kbit.
        most: largest shares of the resources with which a design can still be placed and routed; 1 for those not named.
        slots: largest number of tokens of a pass, 1 to 8; fewer than fit where more would not reach the clock.
        clock_hz: clock of the accelerator in Hz; assumed, not verified here.
        oscillator_hz, oscillator_pin: a clock that the fabric has without a processor, in Hz, and its pin.
        memory_kind: kind of the DRAM, or of its substitute.
        memory_bytes: size of the memory, the host's share included.
        memory_bram36: part of ``has`` that is the memory, if it is made of block RAM.
        memory_peak_bytes_s: bandwidth of the memory's pins in bytes per second.
        memory_measured_bytes_s: measured bandwidth of long reads by the accelerator's ports, in bytes per second.
        memory_model: one of MEMORY_MODELS, if it describes this board's memory.
        ports, port_bytes: number of AXI ports to the memory, 1, 2 or 4, and the largest width of each in bytes.
        port_protocol, burst_beats: protocol of these ports, and the longest burst to use there in beats, a power of two.
        cma_bytes: contiguous memory that a usual image reserves for devices.
        power_sensors: names of Linux hwmon devices that measure the board's power.
        host_cores, host_clock_hz: cores and clock of the processor that runs the driver on the board itself.
        pynq: release line of PYNQ for the board.
        link: connection of the host: AXI from a processor on the chip, or a serial line.
        baud: bits per second of that line.
        loader: name of the board in openFPGALoader.
        loads: target of the loader: the fabric, until power is lost, or the flash that it starts from.
        sources: source of each member's value, by name of the member.

    Raises:
        UsageError: a member has a wrong type or is out of range, or members contradict each other.
    """

    name: str
    title: str
    part: str
    family: str
    has: Mapping[str, int]
    most: Mapping[str, float] = field(default_factory=lambda: USABLE)
    slots: int | None = None
    clock_hz: float
    oscillator_hz: float | None = None
    oscillator_pin: str | None = None
    memory_kind: str
    memory_bytes: int
    memory_bram36: int | None = None
    memory_peak_bytes_s: float
    memory_measured_bytes_s: float | None = None
    memory_model: str | None = None
    ports: int
    port_bytes: int
    port_protocol: Literal["AXI3", "AXI4"]
    burst_beats: int
    cma_bytes: int | None = None
    power_sensors: tuple[str, ...] = ()
    host_cores: int | None = None
    host_clock_hz: float | None = None
    pynq: str | None = None
    link: Literal["axi", "uart"]
    baud: int | None = None
    loader: str | None = None
    loads: Literal["fabric", "flash"] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for member in fields(self):
            value = getattr(self, member.name)
            if value is None and member.default is None:
                continue
            _CHECKS[member.name](self, member.name, value)
            if isinstance(value, Mapping):
                object.__setattr__(self, member.name, MappingProxyType(dict(value)))
        self._check_together()

    def __reduce__(self) -> tuple[Callable[[], Board], tuple[()]]:
        return partial(Board, **self.members()), ()  # a MappingProxyType cannot be pickled

    @property
    def bandwidth_bytes_s(self) -> float:
        """Bandwidth of long reads in bytes per second: the measured one, or else the peak."""
        return self.memory_measured_bytes_s or self.memory_peak_bytes_s

    @property
    def bandwidth_kind(self) -> Literal["measured", "peak"]:
        """Kind of ``bandwidth_bytes_s``, which is printed with it."""
        return "peak" if self.memory_measured_bytes_s is None else "measured"

    @property
    def bandwidth_source(self) -> str:
        """Kind and source of ``bandwidth_bytes_s`` as text."""
        source = self.sources.get(f"memory_{self.bandwidth_kind}_bytes_s", "no source given")
        return f"{'' if self.bandwidth_kind == 'measured' else 'not measured, '}{self.bandwidth_kind}: {source}"

    @property
    def packs(self) -> bool:
        return FAMILIES[self.family].packs

    def usable(self, name: str) -> int:
        """Return the amount of one of RESOURCES that the accelerator and the parts beside it can use."""
        most = int(self.has[name] * self.most.get(name, 1.0))
        return most - (self.memory_bram36 or 0) if name == "bram36" else most

    def members(self) -> dict[str, Any]:
        """Return the members by name, in plain types."""
        values = ((member.name, getattr(self, member.name)) for member in fields(self))
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values}

    def _check_together(self) -> None:
        pairs = (("oscillator_hz", "oscillator_pin"), ("host_cores", "host_clock_hz"), ("loader", "loads"))
        for one, other in pairs:
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                raise UsageError(f"board {self.name}: {one} and {other} belong together: give both or neither")
        if (self.link == "uart") != (self.baud is not None):
            raise UsageError(f"board {self.name}: baud is needed with link uart and for nothing else")
        if self.memory_measured_bytes_s is not None and self.memory_measured_bytes_s > self.memory_peak_bytes_s:
            raise UsageError(
                f"board {self.name}: memory_measured_bytes_s must be at most memory_peak_bytes_s "
                f"{self.memory_peak_bytes_s:g}, not {self.memory_measured_bytes_s:g}"
            )
        if self.cma_bytes is not None and self.cma_bytes > self.memory_bytes:
            raise UsageError(
                f"board {self.name}: cma_bytes must be at most memory_bytes {self.memory_bytes}, not {self.cma_bytes}"
            )
        if self.memory_bram36 is not None and self.usable("bram36") < 0:
            raise UsageError(
                f"board {self.name}: memory_bram36 must be at most the usable part of bram36, "
                f"{self.usable('bram36') + self.memory_bram36}, not {self.memory_bram36}"
            )
        if self.memory_bram36 is not None and self.memory_bytes > self.memory_bram36 * _BRAM36_BYTES:
            raise UsageError(
                f"board {self.name}: memory_bytes must be at most memory_bram36 {self.memory_bram36} * {_BRAM36_BYTES}, not "
                f"{self.memory_bytes}"
            )
        if self.port_protocol == "AXI3" and self.burst_beats > 16:
            raise UsageError(f"board {self.name}: burst_beats must be at most 16 with AXI3, not {self.burst_beats}")


_Check = Callable[[Board, str, Any], None]


def _refused(board: Board, member: str, requirement: str, value: Any) -> UsageError:
    return UsageError(f"board {_shown(board.name).strip(chr(39))}: {member} must be {requirement}, not {_shown(value)}")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "a number that is too long to show"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _number(kind: type[int] | type[float], least: float, most: float) -> _Check:
    def check(board: Board, member: str, value: Any) -> None:
        fits = type(value) is int or (kind is float and type(value) is float)
        if not fits or not least <= value <= most:
            requirement = "a whole number" if kind is int else "a number"
            raise _refused(board, member, f"{requirement} from {least:g} to {most:g}", value)
        if kind is float:
            object.__setattr__(board, member, float(value))

    return check


def _one_of(*known: Any) -> _Check:
    def check(board: Board, member: str, value: Any) -> None:
        if type(value) is not type(known[0]) or value not in known:
            raise _refused(board, member, f"one of {', '.join(map(str, known))}", value)

    return check


def _is_text(value: Any) -> bool:
    return (
        isinstance(value, str) and value.isprintable() and value.strip() == value != "" and len(value) <= _LONGEST_TEXT
    )


def _text(board: Board, member: str, value: Any) -> None:
    if not _is_text(value):
        raise _refused(board, member, "a line of text", value)


def _name(board: Board, member: str, value: Any) -> None:
    if not _is_text(value) or not _NAME.fullmatch(value):
        raise _refused(board, member, "lower-case letters and digits with single dashes between them", value)


def _names(board: Board, member: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(_is_text(name) and "/" not in name for name in value):
        raise _refused(board, member, "names of hwmon devices", value)


def _has(board: Board, member: str, value: Any) -> None:
    if not isinstance(value, Mapping) or set(value) != set(RESOURCES):
        raise _refused(board, member, f"a number for each of {', '.join(RESOURCES)}", value)
    for name, count in value.items():
        if type(count) is not int or not (1 if name in ("lut", "ff") else 0) <= count <= 1 << 24:
            raise _refused(board, f"{member}.{name}", "a whole number, with at least a LUT and a flip-flop", count)


def _most(board: Board, member: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not set(value) <= set(RESOURCES):
        raise _refused(board, member, f"shares of {', '.join(RESOURCES)}", value)
    for name, share in value.items():
        if type(share) not in (int, float) or not 0 < share <= 1:
            raise _refused(board, f"{member}.{name}", "above 0 and at most 1", share)


def _sources(board: Board, member: str, value: Any) -> None:
    known = {one.name for one in fields(board)} - {"name", "sources"}
    if not isinstance(value, Mapping) or not set(value) <= known:
        strange = ", ".join(sorted(map(str, set(value) - known))) if isinstance(value, Mapping) else value
        raise _refused(board, member, "by names of members", strange)
    for name, source in value.items():
        if not _is_text(source):
            raise _refused(board, f"{member}.{name}", "a line of text", source)


_CHECKS: Mapping[str, _Check] = MappingProxyType(
    {
        "name": _name,
        "title": _text,
        "part": _text,
        "family": _one_of(*FAMILIES),
        "has": _has,
        "most": _most,
        "slots": _number(int, 1, 8),
        "clock_hz": _number(float, 1e6, 2e9),
        "oscillator_hz": _number(float, 1e3, 2e9),
        "oscillator_pin": _text,
        "memory_kind": _text,
        "memory_bytes": _number(int, 1 << 10, 1 << 40),
        "memory_bram36": _number(int, 1, 1 << 16),
        "memory_peak_bytes_s": _number(float, 1e3, 1e13),
        "memory_measured_bytes_s": _number(float, 1e3, 1e13),
        "memory_model": _one_of(*MEMORY_MODELS),
        "ports": _one_of(1, 2, 4),
        "port_bytes": _one_of(4, 8, 16, 32, 64),
        "port_protocol": _one_of("AXI3", "AXI4"),
        "burst_beats": _one_of(1, 2, 4, 8, 16, 32, 64, 128, 256),
        "cma_bytes": _number(int, 1, 1 << 40),
        "power_sensors": _names,
        "host_cores": _number(int, 1, 1024),
        "host_clock_hz": _number(float, 1e6, 1e11),
        "pynq": _text,
        "link": _one_of("axi", "uart"),
        "baud": _number(int, 300, 12_000_000),
        "loader": _text,
        "loads": _one_of("fabric", "flash"),
        "sources": _sources,
    }
)
