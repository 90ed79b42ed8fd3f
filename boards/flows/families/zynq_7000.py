"""Zynq-7000: AMD's Vivado, and, experimental, the open tools."""

from __future__ import annotations

FLOWS = ("vivado", "openxc7")
