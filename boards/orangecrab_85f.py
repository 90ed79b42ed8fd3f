"""OrangeCrab r0.2 with the largest ECP5, and DDR3L."""

from __future__ import annotations

from types import MappingProxyType

from edgedec.hw.board import Board

BOARD = Board(
    name="orangecrab-85f",
    title="OrangeCrab r0.2 85F",
    part="LFE5U-85F-8MG285C",
    family="ecp5",
    has=MappingProxyType({"lut": 83_640, "ff": 83_640, "bram36": 104, "uram": 0, "dsp": 156}),
    clock_hz=80e6,
    oscillator_hz=48e6,
    oscillator_pin="A9",
    memory_kind="DDR3L",
    memory_bytes=128 << 20,
    memory_peak_bytes_s=1.6e9,
    ports=1,
    port_bytes=32,
    port_protocol="AXI4",
    burst_beats=256,
    link="uart",
    baud=1_000_000,
    loader="orangeCrab",
    sources=MappingProxyType(
        {
            "title": "orangecrab-fpga/orangecrab-hardware",
            "part": "amaranth-lang/amaranth-boards, orangecrab_r0_2.py",
            "family": "Lattice FPGA-DS-02012",
            "has": "nextpnr-ecp5 --85k counts them: 83,640 LUT4 and registers, 208 EBR of 18 kbit, 156 multipliers 18 x 18",
            "most": "as on the KV260",
            "clock_hz": "assumed",
            "oscillator_hz": "amaranth-lang/amaranth-boards, orangecrab_r0_2.py",
            "oscillator_pin": "amaranth-lang/amaranth-boards, orangecrab_r0_2.py",
            "memory_kind": "orangecrab-fpga/orangecrab-hardware, README",
            "memory_bytes": "orangecrab-fpga/orangecrab-hardware, README: 1 Gbit; some have 4 Gbit",
            "memory_peak_bytes_s": "16 bits at 800 MT/s, the most that ECP5's pins do by FPGA-DS-02012 (check); LiteX "
            "runs it at 192",
            "memory_model": "none: nobody measured its memory here; simulated at one flat rate, the peak",
            "ports": "edgedec's choice; there is no controller for it yet",
            "port_bytes": "edgedec's choice",
            "port_protocol": "edgedec's choice",
            "burst_beats": "AXI4",
            "power_sensors": "none on the board (check)",
            "link": "edgedec's choice: an adapter on the header; the board's USB goes to the fabric without a chip",
            "baud": "assumed: most adapters do it",
            "loader": "trabucayre/openFPGALoader, src/board.hpp: by DFU",
        }
    ),
)
