"""Attention computes the attended vectors of all query heads from queries, keys and values."""
