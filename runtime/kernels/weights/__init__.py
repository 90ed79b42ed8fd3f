"""Weights in memory: huge pages, the layout cache, and parts that are read while a pass runs."""
