"""TUL PYNQ-Z2: a Zynq-7000 with DDR3."""

from __future__ import annotations

from types import MappingProxyType

from edgedec.board import Board

BOARD = Board(
    name="pynq-z2",
    title="TUL PYNQ-Z2",
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
    cma_bytes=128 << 20,
    host_cores=2,
    host_clock_hz=650e6,
    pynq="3.1",
    link="axi",
    loader="pynq_z2",
    loads="fabric",
    sources=MappingProxyType(
        {
            "title": "TUL",
            "part": "Xilinx/PYNQ, boards/Pynq-Z2, pynqz2.tcl",
            "family": "AMD DS190",
            "has": "AMD DS190, Z-7020",
            "most": "as on the KV260",
            "clock_hz": "assumed",
            "oscillator_hz": "TUL, PYNQ-Z2 v1.0.xdc: sysclk, from the Ethernet PHY",
            "oscillator_pin": "TUL, PYNQ-Z2 v1.0.xdc",
            "memory_kind": "Xilinx/PYNQ, boards/Pynq-Z2, pynqz2.tcl",
            "memory_bytes": "Xilinx/PYNQ, docs/source/pynq_overlays/pynqz2.rst",
            "memory_peak_bytes_s": "Xilinx/PYNQ, boards/Pynq-Z2, pynqz2.tcl: 16 bits at 1,050 MT/s",
            "memory_model": "none: nobody measured its memory here; simulated at one flat rate, the peak",
            "ports": "AMD UG585: S_AXI_HP0 to HP3",
            "port_bytes": "AMD UG585: 64 bits",
            "port_protocol": "AMD UG585",
            "burst_beats": "AXI3",
            "cma_bytes": "Xilinx/PYNQ, sdbuild, linux-xlnx/pynq.cfg: CONFIG_CMA_SIZE_MBYTES=128",
            "power_sensors": "none on the board (check)",
            "host_cores": "AMD DS190: Cortex-A9",
            "host_clock_hz": "Xilinx/PYNQ, boards/Pynq-Z2, pynqz2.tcl",
            "pynq": "pynq 4 dropped Zynq-7000, 3.1 has it",
            "link": "AMD UG585: the processor reaches the fabric over AXI",
            "loader": "trabucayre/openFPGALoader, src/board.hpp",
            "loads": "trabucayre/openFPGALoader, doc/boards.yml: no flash of it",
        }
    ),
)
