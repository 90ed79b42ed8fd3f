"""Policies of keys and values, and the heads that they choose."""
