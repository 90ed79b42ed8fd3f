"""OrangeCrab r0.2 with the largest ECP5; its memory here is block RAM, the DDR3L is left alone."""

from __future__ import annotations

from types import MappingProxyType

from edgedec.board import Board

BOARD = Board(
    name="orangecrab-85f",
    title="OrangeCrab r0.2 85F",
    part="LFE5U-85F-8MG285C",
    family="ecp5",
    has=MappingProxyType({"lut": 83_640, "ff": 83_640, "bram36": 104, "uram": 0, "dsp": 156}),
    most=MappingProxyType({"lut": 0.75, "bram36": 1.0, "uram": 0.75, "dsp": 0.65}),
    clock_hz=90e6,
    oscillator_hz=48e6,
    oscillator_pin="A9",
    memory_kind="block RAM",
    memory_bytes=304 << 10,
    memory_bram36=76,
    memory_peak_bytes_s=0.72e9,
    ports=1,
    port_bytes=8,
    port_protocol="AXI4",
    burst_beats=256,
    link="uart",
    baud=1_000_000,
    loader="orangeCrab",
    loads="flash",
    sources=MappingProxyType(
        {
            "title": "orangecrab-fpga/orangecrab-hardware",
            "part": "amaranth-lang/amaranth-boards, orangecrab_r0_2.py",
            "family": "Lattice FPGA-DS-02012",
            "has": "nextpnr-ecp5 --85k counts them: 83,640 LUT4 and registers, 208 EBR of 18 kbit, 156 multipliers 18 x 18",
            "most": "as on the KV260, but for block RAM: most of it is the memory, and nothing is routed through a block",
            "clock_hz": "edgedec's choice: nextpnr-ecp5 reached 94.9 MHz with the accelerator of stories260K, where 90 were "
            "asked (docs/boards.md); timing by nextpnr, not measured on a board",
            "oscillator_hz": "amaranth-lang/amaranth-boards, orangecrab_r0_2.py",
            "oscillator_pin": "amaranth-lang/amaranth-boards, orangecrab_r0_2.py",
            "memory_kind": "edgedec's choice: the board's DDR3L, 128 MiB on most, has no controller here",
            "memory_bytes": "edgedec's choice: what an accelerator and the link leave of the block RAM",
            "memory_bram36": "edgedec's choice: 152 EBR, 2 KiB each; edgedec/hw/system/block_ram.py, synthesized by yosys",
            "memory_peak_bytes_s": "8 bytes in a cycle of 90 MHz: edgedec/hw/system/block_ram.py, in simulation",
            "memory_model": "none: it has no timing but the clock's; simulated at one flat rate, the peak",
            "ports": "edgedec/hw/system/block_ram_system.py",
            "port_bytes": "edgedec's choice",
            "port_protocol": "edgedec's choice",
            "burst_beats": "AXI4",
            "power_sensors": "none on the board (check)",
            "link": "edgedec's choice: an adapter on the header, 0 (rx) and 1 (tx); the board's USB has no serial chip",
            "baud": "assumed: most adapters do it",
            "loader": "trabucayre/openFPGALoader, src/board.hpp",
            "loads": "trabucayre/openFPGALoader, doc/boards.yml: by DFU; gregdavill/foboot has it from 0x80000 on",
        }
    ),
)
