"""Zynq-7000: AMD's Vivado."""

from __future__ import annotations

FLOWS = ("vivado",)
