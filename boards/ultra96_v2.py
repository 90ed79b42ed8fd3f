"""Avnet Ultra96-V2: a small Zynq UltraScale+ with LPDDR4."""

from __future__ import annotations

from types import MappingProxyType

from edgedec.board import Board

BOARD = Board(
    name="ultra96-v2",
    title="Avnet Ultra96-V2",
    part="xczu3eg-sbva484-1-i",
    family="zynq-ultrascale+",
    has=MappingProxyType({"lut": 70_560, "ff": 141_120, "bram36": 216, "uram": 0, "dsp": 360}),
    clock_hz=200e6,
    memory_kind="LPDDR4",
    memory_bytes=2 << 30,
    memory_peak_bytes_s=4.27e9,
    ports=4,
    port_bytes=16,
    port_protocol="AXI4",
    burst_beats=64,
    cma_bytes=128 << 20,
    power_sensors=("ir38060",),
    host_cores=4,
    host_clock_hz=1.2e9,
    pynq="3.0",
    link="axi",
    sources=MappingProxyType(
        {
            "title": "Avnet",
            "part": "Avnet/bdf, ultra96v2/1.3/board.xml",
            "family": "AMD DS891",
            "has": "AMD DS891, ZU3EG (check)",
            "most": "as on the KV260",
            "clock_hz": "assumed: a -1 part, slower than the KV260's -2",
            "memory_kind": "Avnet/bdf, ultra96v2/1.0/preset.xml",
            "memory_bytes": "Avnet/bdf, ultra96v2/1.0/preset.xml: 16,384 Mbit",
            "memory_peak_bytes_s": "Avnet/bdf, ultra96v2/1.0/preset.xml: 32 bits at 1,067 MT/s, all that the part's package "
            "allows",
            "memory_model": "none: nobody measured its memory here; simulated at one flat rate, the peak",
            "ports": "AMD UG1085: S_AXI_HP0 to HP3",
            "port_bytes": "AMD UG1085: 128 bits",
            "port_protocol": "AMD UG1085",
            "burst_beats": "as on the KV260, whose ports are the same (AMD UG1085)",
            "cma_bytes": "Xilinx/PYNQ, sdbuild, linux-xlnx/pynq.cfg: CONFIG_CMA_SIZE_MBYTES=128",
            "power_sensors": "Avnet/Ultra96-PYNQ, device tree and sensorconf-v2: the board's 5 V converter; its name in "
            "hwmon (check)",
            "host_cores": "AMD DS891, EG devices: Cortex-A53",
            "host_clock_hz": "Avnet/bdf, ultra96v2/1.0/preset.xml",
            "pynq": "Avnet/Ultra96-PYNQ, specs/Ultra96_v2.spec",
            "link": "AMD UG1085: the processor reaches the fabric over AXI",
            "loader": "none: openFPGALoader does not list the board, PYNQ loads the bitstream",
        }
    ),
)
