"""Amaranth components, the accelerator generator and its compiler. Empty until the accelerator is built."""
