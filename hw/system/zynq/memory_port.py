"""The way from a port of the accelerator to a port to memory of a Zynq-7000's processing system."""

from typing import Any

from amaranth.hdl import Module, Mux, Value
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.memory.axi import axi4_read, axi4_write
from edgedec.hw.system.zynq.axi3 import LONGEST_BURST, axi3, axi3_read

__all__ = ["BEYOND", "ID_BITS", "PORT_BYTES", "MemoryPort"]

ID_BITS = 6  # bits of the ids of S_AXI_HP0 .. 3
PORT_BYTES = 8  # width of these ports; the processing system can use half of it
PHYSICAL_BITS = 32  # bits of an address of these ports
BEYOND = 0x8000_0000  # UG585, table 4-1: no memory and no register is here for S_AXI_HP0 .. 3


class MemoryPort(CostedComponent):
    """Carry an AXI4 read port, and perhaps a write port, to an AXI3 port of 64 bits.

    The bursts are already short enough, and all have one id, so nothing has to be reordered or cut. A port of 32 bits
    uses the lower half of the lanes; the processing system's register says that it does. An address of more than 32
    bits must not reach some other place, so it is replaced by one without memory, and the processing system answers
    with an error.

    Parameters:
        data_bytes: bytes of the accelerator's ports, 4 or 8.
        address_bits: bits of its addresses, 33 to 64.
        writes: whether there is a write port.

    Members:
        read: In(AXI4 read channels). Its bursts have at most 16 beats.
        write: In(AXI4 write channels), likewise; only with ``writes``.
        memory: Out(AXI3), its write channels only with ``writes``.

    Latency: none; there are no registers.
    Source: AMD UG585, "AXI_HP Interfaces" and table 4-1; ARM IHI 0022 for the fields that AXI4 lacks.
    """

    def __init__(self, *, data_bytes: int, address_bits: int = 40, writes: bool) -> None:
        if data_bytes not in (4, PORT_BYTES):
            raise ValueError(f"data_bytes must be 4 or {PORT_BYTES}, not {data_bytes!r}")
        if not PHYSICAL_BITS < address_bits <= 64:
            raise ValueError(f"address_bits must be {PHYSICAL_BITS + 1} to 64, not {address_bits!r}")
        self._data_bytes, self._writes = data_bytes, writes
        widths = {"address_bits": address_bits, "data_bytes": data_bytes}
        physical = {"address_bits": PHYSICAL_BITS, "data_bytes": PORT_BYTES, "id_bits": ID_BITS}
        super().__init__(
            lambda: {
                "read": In(axi4_read(**widths)),
                **({"write": In(axi4_write(**widths))} if writes else {}),
                "memory": Out(axi3(**physical) if writes else axi3_read(**physical)),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; not calibrated."""
        return Resources(lut=(1 + self._writes) * PHYSICAL_BITS)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        read, memory, bits = self.read, self.memory, 8 * self._data_bytes
        self._address(m, "r", read)
        m.d.comb += [
            read.rid.eq(memory.rid),
            read.rdata.eq(memory.rdata[:bits]),
            *(getattr(read, name).eq(getattr(memory, name)) for name in ("rresp", "rlast", "rvalid")),
            memory.rready.eq(read.rready),
        ]
        if self._writes:
            write = self.write
            self._address(m, "w", write)
            m.d.comb += [
                memory.wid.eq(write.awid),  # constant, as all ids of edgedec's managers
                *(getattr(memory, name).eq(getattr(write, name)) for name in ("wdata", "wstrb", "wlast", "wvalid")),
                write.wready.eq(memory.wready),
                *(getattr(write, name).eq(getattr(memory, name)) for name in ("bid", "bresp", "bvalid")),
                memory.bready.eq(write.bready),
            ]
        return m

    def _address(self, m: Module, letter: str, manager: Any) -> None:
        memory = self.memory
        address: Value = getattr(manager, f"a{letter}addr")
        valid, length = getattr(manager, f"a{letter}valid"), getattr(manager, f"a{letter}len")
        contract(m, ~valid | (length < LONGEST_BURST), f"A{letter.upper()}LEN of an AXI3 port has 4 bits")
        placed = Mux(address[PHYSICAL_BITS:].any(), BEYOND, address[:PHYSICAL_BITS])
        names = ("id", "len", "size", "burst", "cache", "prot", "valid")
        m.d.comb += [
            getattr(memory, f"a{letter}addr").eq(placed),
            *(getattr(memory, f"a{letter}{name}").eq(getattr(manager, f"a{letter}{name}")) for name in names),
            getattr(manager, f"a{letter}ready").eq(getattr(memory, f"a{letter}ready")),
        ]
