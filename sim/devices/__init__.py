"""Simulated accelerators: a file is a device of edgedec.device, and its name is the --device name."""
