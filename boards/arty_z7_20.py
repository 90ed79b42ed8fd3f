"""Digilent Arty Z7-20: a Zynq-7000 with DDR3."""

from __future__ import annotations

from types import MappingProxyType

from edgedec.board import Board

BOARD = Board(
    name="arty-z7-20",
    title="Digilent Arty Z7-20",
    part="xc7z020clg400-1",
    family="zynq-7000",
    has=MappingProxyType({"lut": 53_200, "ff": 106_400, "bram36": 140, "uram": 0, "dsp": 220}),
    clock_hz=125e6,
    oscillator_hz=125e6,
    oscillator_pin="H16",
    memory_kind="DDR3",
    memory_bytes=512 << 20,
    memory_peak_bytes_s=2.10e9,
    ports=4,
    port_bytes=8,
    port_protocol="AXI3",
    burst_beats=16,
    host_cores=2,
    host_clock_hz=650e6,
    link="axi",
    loader="arty_z7_20",
    loads="fabric",
    sources=MappingProxyType(
        {
            "title": "Digilent",
            "part": "Digilent, Arty Z7 reference manual (check)",
            "family": "AMD DS190",
            "has": "AMD DS190, Z-7020",
            "most": "as on the KV260",
            "clock_hz": "assumed",
            "oscillator_hz": "Digilent, Arty-Z7-20-Master.xdc: sysclk, from the Ethernet PHY",
            "oscillator_pin": "Digilent, Arty-Z7-20-Master.xdc",
            "memory_kind": "Digilent/vivado-boards, arty-z7-20/A.0/preset.xml",
            "memory_bytes": "Digilent/vivado-boards, arty-z7-20/A.0/preset.xml: up to address 0x1FFFFFFF",
            "memory_peak_bytes_s": "Digilent/vivado-boards, arty-z7-20/A.0/preset.xml: 1,050 MT/s over two byte lanes",
            "memory_model": "none: nobody measured its memory here; simulated at one flat rate, the peak",
            "ports": "AMD UG585: S_AXI_HP0 to HP3",
            "port_bytes": "AMD UG585: 64 bits",
            "port_protocol": "AMD UG585",
            "burst_beats": "AXI3",
            "cma_bytes": "PYNQ has no image for this board; the one that runs says it in /proc/meminfo",
            "power_sensors": "none on the board (check)",
            "host_cores": "AMD DS190: Cortex-A9",
            "host_clock_hz": "Digilent/vivado-boards, arty-z7-20/A.0/preset.xml",
            "pynq": "PYNQ has no image for this board; one has to be built",
            "link": "AMD UG585: the processor reaches the fabric over AXI",
            "loader": "trabucayre/openFPGALoader, src/board.hpp",
            "loads": "trabucayre/openFPGALoader, doc/boards.yml: no flash of it",
        }
    ),
)
