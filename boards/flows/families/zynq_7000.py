"""Zynq-7000: AMD's Vivado."""

FLOWS = ("vivado",)
