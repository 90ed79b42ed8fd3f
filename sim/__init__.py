"""Simulators and benches of the accelerator."""
