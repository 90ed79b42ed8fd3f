"""A board as data: what its device has, its memory, its clocks, its host, each figure with the source that it is from."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from edgedec.errors import UsageError
from edgedec.hw.resources import Resources

__all__ = ["FAMILIES", "MEMORY_MODELS", "RESOURCES", "USABLE", "Board", "Family"]

RESOURCES = ("lut", "ff", "bram36", "uram", "dsp")
# Of LUTs, accelerators that others placed on the KV260 take 84 and 87 % (TeLLMe v2, PD-Swap).
USABLE: Mapping[str, float] = MappingProxyType({"lut": 0.77, "bram36": 0.75, "uram": 48 / 64, "dsp": 0.65})
MEMORY_MODELS = ("KV260",)  # the sets of edgedec.sim.ddr.parameters that were fitted to a board
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MOST_SHOWN = 80  # characters of a wrong value
_LONGEST_TEXT = 500
_BRAM36_BYTES = 4096  # without the bits that are a byte's ninth


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a part that was estimated for UltraScale+ becomes on the devices of a family.

    Members:
        name: as Board.family names it.
        lut_of: its LUTs to a LUT6; dsp_of: its multipliers to a DSP48E2. By the path of a part, "" for all others.
        packs: its multipliers have adders in front and behind and registers, and the maker's tool finds them.
        source: of these.
    """

    name: str
    lut_of: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({"": 1.0}))
    dsp_of: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({"": 1}))
    packs: bool = True
    source: str


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        found.name: found
        for found in (
            Family(name="zynq-ultrascale+", source="what the formulas were calibrated against"),
            Family(name="zynq-7000", source="assumed: it has the LUT6 and a multiplier of 25 x 18, not 27 x 18 bits"),
            # An adder takes a LUT for a bit here and there, a LUT6 of logic up to four LUT4, a memory of LUTs six times as
            # many. Named are parts that were synthesized; the rest has what most have. 18 x 18 bits are a multiplier.
            Family(
                name="ecp5",
                lut_of=MappingProxyType(
                    {
                        "": 1.9,
                        "router": 4.3,
                        "datapath.matrix.engine": 2.8,
                        "datapath.mac": 1.05,
                        "datapath.residual": 1.4,
                        "datapath.head": 1.6,
                    }
                ),
                dsp_of=MappingProxyType({"": 2, "datapath.mac": 1, "datapath.attention.rotary": 1}),
                packs=False,
                source="benchmarks/accelerator_estimate.py --family ecp5",
            ),
        )
    }
)


@dataclass(frozen=True, kw_only=True)
class Board:
    """A board. What is None, or empty, it does not have, or nobody knows; ``sources`` may say which.

    Members:
        name: as ``--board`` takes it, lower case with dashes.
        title: what the maker calls it.
        part: the device's ordering name, as the maker's tools take it.
        family: one of FAMILIES.
        has: how much there is of each of RESOURCES; bram36 counts two RAMs of 18 kbit.
        most: shares up to which a design can still be placed and routed; 1 where none is named.
        clock_hz: of the accelerator; assumed, nothing here proves it.
        oscillator_hz, oscillator_pin: a clock that the fabric has without a processor.
        memory_kind: of the DRAM, or what there is instead.
        memory_bytes: of it, the host's share included.
        memory_bram36: how much of ``has`` it is, if it is made of block RAM.
        memory_peak_bytes_s: what its pins could move at most.
        memory_measured_bytes_s: what long reads by the accelerator's ports were measured to get.
        memory_model: one of MEMORY_MODELS, if this board's memory is that one.
        ports, port_bytes: AXI ports to it, 1, 2 or 4, and how wide each of them is at most.
        port_protocol, burst_beats: of these ports, and the longest burst that they take.
        cma_bytes: contiguous memory that a usual image sets aside for devices.
        power_sensors: names of Linux hwmon devices that measure the board's power.
        host_cores, host_clock_hz: of the processor that runs the driver on the board itself.
        pynq: the release line of PYNQ that runs there.
        link: how the host reaches the accelerator: over AXI from a processor on the chip, or over a serial line.
        baud: of that line.
        loader: the board's name in openFPGALoader.
        loads: what that writes: the fabric itself, until the power goes, or the flash that it starts from.
        sources: member -> where its value is from.

    Raises:
        UsageError: a member is of another type or out of range, or several do not go together.
    """

    name: str
    title: str
    part: str
    family: str
    has: Mapping[str, int]
    most: Mapping[str, float] = field(default_factory=lambda: USABLE)
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

    def __reduce__(self) -> tuple[Callable[[], "Board"], tuple[()]]:
        return partial(Board, **self.members()), ()  # a MappingProxyType cannot be pickled

    @property
    def bandwidth_bytes_s(self) -> float:
        """Of long reads: as measured, or else the peak."""
        return self.memory_measured_bytes_s or self.memory_peak_bytes_s

    @property
    def bandwidth_kind(self) -> Literal["measured", "peak"]:
        """Which of the two that is; whoever prints the one prints the other."""
        return "peak" if self.memory_measured_bytes_s is None else "measured"

    @property
    def bandwidth_source(self) -> str:
        """Kind and source of ``bandwidth_bytes_s``."""
        source = self.sources.get(f"memory_{self.bandwidth_kind}_bytes_s", "no source given")
        return f"{'' if self.bandwidth_kind == 'measured' else 'not measured, '}{self.bandwidth_kind}: {source}"

    @property
    def packs(self) -> bool:
        return FAMILIES[self.family].packs

    def usable(self, name: str) -> int:
        """Of one of RESOURCES, for an accelerator and what stands beside it."""
        most = int(self.has[name] * self.most.get(name, 1.0))
        return most - (self.memory_bram36 or 0) if name == "bram36" else most

    def converted(self, path: str, part: Resources) -> Resources:
        """What a part of UltraScale+ takes there."""
        family = FAMILIES[self.family]
        lut, dsp = (of.get(path, of[""]) for of in (family.lut_of, family.dsp_of))
        return replace(part, lut=round(part.lut * lut), dsp=round(part.dsp * dsp))

    def members(self) -> dict[str, Any]:
        """By name, in plain types."""
        values = ((member.name, getattr(self, member.name)) for member in fields(self))
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values}

    def _check_together(self) -> None:
        pairs = (("oscillator_hz", "oscillator_pin"), ("host_cores", "host_clock_hz"), ("loader", "loads"))
        for one, other in pairs:
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                raise UsageError(f"board {self.name}: {one} and {other} go together: give both or neither")
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
                f"board {self.name}: memory_bram36 must be at most what can be used of bram36, "
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


def _refused(board: Board, member: str, wanted: str, value: Any) -> UsageError:
    return UsageError(f"board {_shown(board.name).strip(chr(39))}: {member} must be {wanted}, not {_shown(value)}")


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
            wanted = "a whole number" if kind is int else "a number"
            raise _refused(board, member, f"{wanted} from {least:g} to {most:g}", value)
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
        "burst_beats": _number(int, 1, 256),
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
