"""Zynq UltraScale+ and Zynq-7000: a project for AMD's Vivado, its run, and what its reports say."""
