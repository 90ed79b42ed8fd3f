"""Attention over keys and values, their cache and their file."""
