"""Decoders: one file each."""
