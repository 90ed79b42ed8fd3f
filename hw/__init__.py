"""Amaranth components, the accelerator generator and its compiler."""
