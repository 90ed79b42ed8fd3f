"""The accelerator as an IP block: its ports by the names that Vivado packages into bus interfaces."""

from __future__ import annotations

from collections.abc import Iterator

from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.isa.instructions import ISA_VERSION
from edgedec.hw.isa.ip_core import (
    CLOCK,
    HASH_PARAMETER,
    INTERRUPT,
    ISA_PARAMETER,
    REGISTERS,
    RESET,
    RTLIL_PARAMETER,
    memory_interface,
)

__all__ = ["CORE", "TOP", "wrapper_verilog"]

TOP, CORE = "accelerator", "accelerator_core"  # modules
REGISTER_BITS = 12  # bits of an address; equals REGISTER_ADDRESS_BITS of edgedec.hw.accelerator, which needs amaranth
# Loads of a copy of the reset, assumed. The reset is the net of the most loads after the clock: 1,567 in a tiny accelerator,
# where the next net has 777, counted by yosys. The resets inside of the core are spread already (``StagedReset``).
_RESET_FANOUT = 400
_RESET = f"""\
    // The reset goes to all parts of the core. The chain gives it cycles to get there, and synthesis copies its last
    // register, so no part of the chain may become a shift register.
    (* shreg_extract = "no" *) reg [2:0] reset_chain = 3'b111;
    (* shreg_extract = "no", max_fanout = {_RESET_FANOUT} *) reg reset = 1'b1;
    always @(posedge {CLOCK}) begin
        reset_chain <= {RESET} ? {{reset_chain[1:0], 1'b0}} : 3'b111;
        reset <= reset_chain[2];
    end"""
_AXI = "xilinx.com:interface:aximm:1.0"

_Signal = tuple[str, str, int]  # name, direction of ours, bits


def wrapper_verilog(config: AcceleratorConfig, rtlil_hash: int) -> str:
    """Module ``TOP`` around module ``CORE``. The first read port and the write port are one bus; reset is active low; the
    core sees its begin two cycles later, and its end four.

    The parameters are only there to be read in the hand-off file. ``rtlil_hash`` is that of the core.

    Source: AMD UG994, "Using the signal interface attributes": X_INTERFACE_INFO and X_INTERFACE_PARAMETER.
    """
    ports, wires = list[str](), list[str]()
    buses = [REGISTERS, *(memory_interface(port) for port in range(config.ports))]
    ports.append(
        _port(
            "input",
            CLOCK,
            1,
            f"xilinx.com:signal:clock:1.0 {CLOCK} CLK",
            f"ASSOCIATED_BUSIF {':'.join(buses)}, ASSOCIATED_RESET {RESET}",
        )
    )
    ports.append(_port("input", RESET, 1, f"xilinx.com:signal:reset:1.0 {RESET} RST", "POLARITY ACTIVE_LOW"))
    sensitivity = "SENSITIVITY LEVEL_HIGH"
    ports.append(_port("output", INTERRUPT, 1, f"xilinx.com:signal:interrupt:1.0 {INTERRUPT} INTERRUPT", sensitivity))
    for bus, prefix, signals, parameter in _buses(config):
        for number, (name, direction, bits) in enumerate(signals):
            about = f"{_AXI} {bus} {name.upper()}"
            ports.append(_port(direction, f"{bus}_{name}", bits, about, "" if number else parameter))
            wires.append(f"        .{prefix}__{name}({bus}_{name})")
    wires += [f"        .clk({CLOCK})", "        .rst(reset)", f"        .interrupt({INTERRUPT})"]
    # A bus that has both directions comes in two parts, and is the same one by its name.
    return "\n".join(
        [
            f"// edgedec: accelerator of configuration {config.hash:016x}. Not run in Vivado.",
            "`default_nettype none",
            f"module {TOP} #(",
            f"    parameter [63:0] {HASH_PARAMETER} = 64'h{config.hash:016x},",
            f"    parameter integer {ISA_PARAMETER} = {ISA_VERSION},",
            f"    parameter [63:0] {RTLIL_PARAMETER} = 64'h{rtlil_hash:016x},",
            f"    parameter integer PORTS = {config.ports}",
            ") (",
            ",\n".join(ports),
            ");",
            _RESET,
            f"    {CORE} core (",
            ",\n".join(wires),
            "    );",
            "endmodule",
            "`default_nettype wire",
            "",
        ]
    )


def _port(direction: str, name: str, bits: int, about: str, parameter: str) -> str:
    """``parameter``: of the whole bus, said at one of its ports."""
    lines = [f'    (* X_INTERFACE_INFO = "{about}" *)']
    if parameter:
        bus = about.split()[1]
        lines.append(f'    (* X_INTERFACE_PARAMETER = "XIL_INTERFACENAME {bus}, {parameter}" *)')
    width = f"[{bits - 1}:0] " if bits > 1 else ""
    return "\n".join([*lines, f"    {direction} wire {width}{name}"])


def _buses(config: AcceleratorConfig) -> Iterator[tuple[str, str, list[_Signal], str]]:
    """Return each bus: its name, the core's prefix, its signals and its parameter."""
    bits = 8 * config.port_bytes
    yield (
        REGISTERS,
        "registers",
        [*_flipped(_write(REGISTER_BITS, 32, lite=True)), *_flipped(_read(REGISTER_BITS, 32, lite=True))],
        f"PROTOCOL AXI4LITE, ADDR_WIDTH {REGISTER_BITS}, DATA_WIDTH 32",
    )
    common = f"PROTOCOL AXI4, ADDR_WIDTH {ADDRESS_BITS}, DATA_WIDTH {bits}, ID_WIDTH 1, SUPPORTS_NARROW_BURST 0"
    for port in range(config.ports):
        mode = "READ_WRITE" if port == 0 else "READ_ONLY"
        parameter = f"{common}, READ_WRITE_MODE {mode}"
        yield memory_interface(port), f"read{port}", _read(ADDRESS_BITS, bits), parameter
        if port == 0:
            yield memory_interface(port), "write", _write(ADDRESS_BITS, bits), ""


def _flipped(signals: list[_Signal]) -> list[_Signal]:
    return [(name, "input" if direction == "output" else "output", bits) for name, direction, bits in signals]


def _address(letter: str, address_bits: int, lite: bool) -> list[_Signal]:
    """Return the address signals of a manager."""
    names = [("addr", address_bits), ("prot", 3)]
    if not lite:
        names += [("id", 1), ("len", 8), ("size", 3), ("burst", 2), ("cache", 4)]
    signals = [(f"a{letter}{name}", "output", bits) for name, bits in names]
    return [*signals, (f"a{letter}valid", "output", 1), (f"a{letter}ready", "input", 1)]


def _read(address_bits: int, bits: int, lite: bool = False) -> list[_Signal]:
    data = [("rdata", "input", bits), ("rresp", "input", 2), ("rvalid", "input", 1), ("rready", "output", 1)]
    return [*_address("r", address_bits, lite), *data, *([] if lite else [("rid", "input", 1), ("rlast", "input", 1)])]


def _write(address_bits: int, bits: int, lite: bool = False) -> list[_Signal]:
    data = [("wdata", "output", bits), ("wstrb", "output", bits // 8), ("wvalid", "output", 1), ("wready", "input", 1)]
    answer = [("bresp", "input", 2), ("bvalid", "input", 1), ("bready", "output", 1)]
    more = [] if lite else [("wlast", "output", 1), ("bid", "input", 1)]
    return [*_address("w", address_bits, lite), *data, *answer, *more]
