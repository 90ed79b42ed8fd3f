"""What an accelerator costs before anything is synthesized: by part, in total, and as a share of a board's device."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from edgedec.errors import UsageError
from edgedec.hw import accelerator, mac_array
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.resources import Resources, total

__all__ = ["BOARDS", "RESOURCES", "Board", "Estimate", "board", "estimate"]

RESOURCES = ("lut", "ff", "bram36", "uram", "dsp")


@dataclass(frozen=True, kw_only=True)
class Board:
    """A device, and what a part of UltraScale+ becomes on it.

    Members:
        name: as ``--board`` takes it.
        device: what the maker calls it.
        has: how much there is of each of RESOURCES; bram36 counts two RAMs of 18 kbit.
        most: shares up to which a design can still be placed and routed; 1 where none is named.
        lut_of: its LUTs to a LUT6; dsp_of: its multipliers to a DSP48E2. By the path of a part, "" for all others.
        packs: its multipliers have adders in front and behind and registers, and the maker's tool finds them.
        source: of ``has``.
        bandwidth_bytes_s: that its memory gives to long reads; ``memory_source`` says whether that was measured.
        memory_bytes: of it, the host's share included.
        ports, port_bytes: AXI ports to it, and how wide each of them is at most.
        clock_hz: of the accelerator; assumed, nothing here proves it.
        memory_source: of these.
    """

    name: str
    device: str
    has: Mapping[str, int]
    most: Mapping[str, float]
    lut_of: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({"": 1.0}))
    dsp_of: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({"": 1}))
    packs: bool = True
    source: str
    bandwidth_bytes_s: float
    memory_bytes: int
    ports: int
    port_bytes: int
    clock_hz: float
    memory_source: str

    def converted(self, path: str, part: Resources) -> Resources:
        """What a part of UltraScale+ takes there."""
        lut, dsp = (of.get(path, of[""]) for of in (self.lut_of, self.dsp_of))
        return replace(part, lut=round(part.lut * lut), dsp=round(part.dsp * dsp))


_MOST = MappingProxyType({"lut": 0.75, "bram36": 0.75, "uram": 48 / 64, "dsp": 0.65})
BOARDS = {
    found.name: found
    for found in (
        Board(
            name="kv260",
            device="XCK26 (Zynq UltraScale+)",
            has=MappingProxyType({"lut": 117120, "ff": 234240, "bram36": 144, "uram": 64, "dsp": 1248}),
            most=_MOST,
            source="AMD DS987, Kria K26 SOM",
            bandwidth_bytes_s=15.97e9,
            memory_bytes=4 << 30,
            ports=4,
            port_bytes=16,
            clock_hz=250e6,
            memory_source="measured by MerlijnW70/bitnet-kv260: one long read over HP0 to HP3 at 250 MHz; peak 17.07e9",
        ),
        Board(
            name="xc7z020",
            device="XC7Z020 (Zynq-7000)",
            has=MappingProxyType({"lut": 53200, "ff": 106400, "bram36": 140, "uram": 0, "dsp": 220}),
            most=_MOST,
            source="AMD DS190",
            bandwidth_bytes_s=2.10e9,
            memory_bytes=512 << 20,
            ports=4,
            port_bytes=8,
            clock_hz=125e6,
            memory_source="not measured: the peak of PYNQ-Z2's and Arty Z7's DDR3, 16 bits at 1,050 MT/s; AMD UG585: AXI_HP",
        ),
        # An adder takes a LUT for a bit here and there, a LUT6 of logic up to four LUT4, a memory of LUTs six times as many.
        # Named are parts that were synthesized; the rest has what most of them have. 18 x 18 bits are one multiplier.
        Board(
            name="ulx3s-85f",
            device="LFE5U-85F (ECP5)",
            has=MappingProxyType({"lut": 83640, "ff": 83640, "bram36": 104, "uram": 0, "dsp": 156}),
            most=_MOST,
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
            source="Lattice FPGA-DS-02012: 208 EBR of 18 kbit, 156 multipliers 18 x 18",
            bandwidth_bytes_s=0.33e9,
            memory_bytes=32 << 20,
            ports=1,
            port_bytes=8,
            clock_hz=80e6,
            memory_source="not measured: the peak of its SDRAM, 16 bits at 166 MHz; a controller is no part of edgedec yet",
        ),
    )
}


def board(name: str) -> Board:
    """Raises:
    UsageError: there is no such board.
    """
    if name not in BOARDS:
        raise UsageError(f"no board {name!r}; there are {', '.join(BOARDS)}")
    return BOARDS[name]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Members:
    config: whose it is.
    parts: of each submodule of the Accelerator by its path, in the order in which they are built.
    """

    config: AcceleratorConfig
    parts: Mapping[str, Resources]

    @property
    def total(self) -> Resources:
        return total(self.parts.values())

    @property
    def in_multipliers(self) -> Resources:
        """What ``total`` leaves out, as DSP48E2s hold it: adders and registers around the MacArray's multipliers."""
        size = self.config
        return mac_array.in_multipliers(lanes=size.beat_bytes, slots=size.slots, chunk=size.chunk)

    def under(self, path: str) -> Resources:
        """Of a submodule with all that is in it, such as "datapath.matrix".

        Raises:
            UsageError: there is none of that path.
        """
        found = [part for name, part in self.parts.items() if name == path or name.startswith(f"{path}.")]
        if not found:
            raise UsageError(f"an accelerator has no part {path!r}; it has {', '.join(self.parts)}")
        return total(found)

    def on(self, device: Board) -> dict[str, int]:
        """How much of each of RESOURCES it takes there. Who has no UltraRAM generates it with ``ultra=False``."""
        found = total(device.converted(path, part) for path, part in self.parts.items())
        if not device.packs:
            found += device.converted("datapath.mac", self.in_multipliers)
        return {
            "lut": found.lut,
            "ff": found.ff,
            "bram36": -(-found.bram18 // 2),
            "uram": found.uram,
            "dsp": found.dsp,
        }

    def shares(self, device: Board) -> dict[str, float]:
        """The same as shares of what there is; infinite where it needs what the device has not."""
        return {
            name: (need / device.has[name] if device.has[name] else float("inf") * need) if need else 0.0
            for name, need in self.on(device).items()
        }

    def beyond(self, device: Board) -> list[str]:
        """Of which of RESOURCES it takes more than can be placed and routed there."""
        return [name for name, share in self.shares(device).items() if share > device.most.get(name, 1.0)]


def estimate(config: AcceleratorConfig) -> Estimate:
    """In milliseconds. Its error: benchmarks/accelerator_estimate.py."""
    return Estimate(config=config, parts=accelerator.parts(config))
