"""Configure the top on which whole tokens and the suite of devices run: one library, compiled once in minutes."""

from __future__ import annotations

from edgedec.hw.config import AcceleratorConfig

# Two ports, four slots, heads of 8 in groups of two, sizes that are multiples of nothing, tiles of eight words.
CONFIG = AcceleratorConfig(
    beat_bytes=8,
    ports=2,
    slots=4,
    tile_rows=40,
    context=48,
    width=72,
    hidden=36,
    heads=4,
    kv_heads=2,
    head_dim=8,
    top_k=4,
    prefetch_beats=64,
    instructions=256,
    scaling=True,
    ultra=False,
)
