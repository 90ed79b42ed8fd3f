"""Zynq-7000 by openXC7, experimental: the top, the project, and a run of yosys, nextpnr-xilinx and prjxray's tools."""
