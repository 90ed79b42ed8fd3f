"""AMD Kria KV260: a K26 module (Zynq UltraScale+) on a carrier."""

from __future__ import annotations

from types import MappingProxyType

from edgedec.board import Board

BOARD = Board(
    name="kv260",
    title="AMD Kria KV260",
    part="xck26-sfvc784-2LV-c",
    family="zynq-ultrascale+",
    has=MappingProxyType({"lut": 117_120, "ff": 234_240, "bram36": 144, "uram": 64, "dsp": 1_248}),
    clock_hz=250e6,
    memory_kind="DDR4",
    memory_bytes=4 << 30,
    memory_peak_bytes_s=17.07e9,
    memory_measured_bytes_s=15.97e9,
    memory_model="KV260",
    ports=4,
    port_bytes=16,
    port_protocol="AXI4",
    burst_beats=64,
    cma_bytes=1000 << 20,
    power_sensors=("ina260_u14",),
    host_cores=4,
    host_clock_hz=1.333e9,
    pynq="3.0",
    link="axi",
    sources=MappingProxyType(
        {
            "title": "AMD DS986",
            "part": "AMD DS987, Kria K26 SOM",
            "family": "AMD DS987: a custom Zynq UltraScale+",
            "has": "AMD DS987",
            "most": "edgedec's goals for this board; what is left is for the tools and the block design",
            "clock_hz": "assumed; MerlijnW70/bitnet-kv260 ran its own design at this clock",
            "memory_kind": "AMD DS987",
            "memory_bytes": "AMD DS987: 4 GB, 64 bits wide",
            "memory_peak_bytes_s": "64 bits at 2,133 MT/s, as the boot program sets it up (u-boot, zynqmp-sm-k26-revA); the "
            "module could do 2,400",
            "memory_measured_bytes_s": "MerlijnW70/bitnet-kv260: one long read over HP0 to HP3 at 250 MHz; result writes in "
            "long bursts leave 13.3e9",
            "memory_model": "docs/accelerator.md: fitted to that project's logs",
            "ports": "AMD UG1085: S_AXI_HP0 to HP3",
            "port_bytes": "AMD UG1085: 128 bits",
            "port_protocol": "AMD UG1085",
            "burst_beats": "MerlijnW70/bitnet-kv260: its ports read in bursts of 64 when they moved 15.97e9; AMD UG1085, "
            "AXI FIFO Interface: a port takes 8 commands at a time, and holds 128 words of 128 bits",
            "cma_bytes": "boot script of Ubuntu for Kria: cma=1000M; some modules report CmaTotal 0 with it",
            "power_sensors": "hwmon name in public logs of KV260s: the 5 V supply of the module, not of the carrier",
            "host_cores": "AMD DS987: Cortex-A53",
            "host_clock_hz": "Kria's boot firmware (check)",
            "pynq": "Xilinx/Kria-PYNQ installs pynq 3.0.1",
            "link": "AMD UG1085: the processor reaches the fabric over AXI",
            "loader": "none: openFPGALoader does not list the board, PYNQ loads the bitstream",
        }
    ),
)
