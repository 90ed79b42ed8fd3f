"""Simulated accelerators. Each file is a device of edgedec.device, and its name is the value of ``--device``."""
