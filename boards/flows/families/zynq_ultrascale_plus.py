"""Zynq UltraScale+: AMD's Vivado."""

FLOWS = ("vivado",)
