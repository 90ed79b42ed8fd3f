"""Radiona ULX3S with the largest ECP5, and SDR SDRAM."""

from __future__ import annotations

from types import MappingProxyType

from edgedec.board import Board

BOARD = Board(
    name="ulx3s-85f",
    title="Radiona ULX3S-85F",
    part="LFE5U-85F-6BG381C",
    family="ecp5",
    has=MappingProxyType({"lut": 83_640, "ff": 83_640, "bram36": 104, "uram": 0, "dsp": 156}),
    slots=2,
    clock_hz=80e6,
    oscillator_hz=25e6,
    oscillator_pin="G2",
    memory_kind="SDR SDRAM",
    memory_bytes=32 << 20,
    memory_peak_bytes_s=0.2e9,
    ports=1,
    port_bytes=8,
    port_protocol="AXI4",
    burst_beats=256,
    link="uart",
    baud=3_000_000,
    loader="ulx3s",
    loads="fabric",
    sources=MappingProxyType(
        {
            "title": "emard/ulx3s",
            "part": "amaranth-lang/amaranth-boards, ulx3s.py",
            "family": "Lattice FPGA-DS-02012",
            "has": "nextpnr-ecp5 --85k counts them: 83,640 LUT4 and registers, 208 EBR of 18 kbit, 156 multipliers 18 x 18",
            "most": "as on the KV260",
            "slots": "edgedec's choice: three fit, but its clock was reached with two, and no build with three was tried",
            "clock_hz": "edgedec's choice: nextpnr-ecp5 reached 81.2 MHz with the embedded model's accelerator, where 80 "
            "were asked (docs/boards.md); timing by nextpnr, not measured on a board",
            "oscillator_hz": "emard/ulx3s, doc/constraints/ulx3s_v20.lpf",
            "oscillator_pin": "emard/ulx3s, doc/constraints/ulx3s_v20.lpf",
            "memory_kind": "emard/ulx3s, doc/MANUAL.md (check)",
            "memory_bytes": "emard/ulx3s, list of boards made: IS42S16160G, 256 Mbit; some have 64 MiB",
            "memory_peak_bytes_s": "16 bits at the 100 MHz of edgedec's controller; most boards' chip is for 143",
            "memory_model": "none: nobody measured its memory here; simulated at one flat rate, the peak",
            "ports": "edgedec's choice: its controller has one for reads and writes",
            "port_bytes": "edgedec's choice",
            "port_protocol": "edgedec's choice",
            "burst_beats": "AXI4",
            "power_sensors": "none on the board (check)",
            "link": "emard/ulx3s, doc/MANUAL.md: USB serial port to the fabric",
            "baud": "FTDI FT231X data sheet: at most 3 Mbaud",
            "loader": "trabucayre/openFPGALoader, src/board.hpp",
            "loads": "trabucayre/openFPGALoader: without --write-flash",
        }
    ),
)
