"""Simulated devices are made of these parts: a clocked machine, its memory and its registers."""
