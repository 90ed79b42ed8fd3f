"""Zynq UltraScale+: AMD's Vivado."""

from __future__ import annotations

FLOWS = ("vivado",)
