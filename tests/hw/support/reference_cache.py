"""Model a key and value cache in memory with NumPy, and what a pass and a commit write there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.striping import block_bytes, stripe

__all__ = ["KEYS", "VALUES", "Cache", "cache_config"]

KEYS, VALUES = 0, 1


def cache_config(beat_bytes: int, ports: int, slots: int, head_dim: int, **others: Any) -> AcceleratorConfig:
    """Return the members that the cache's writer reads; all others are as small as possible."""
    members: dict[str, Any] = {"top_k": 2, "context": 64, "hidden": 5, "width": 5, **others}
    return AcceleratorConfig(beat_bytes=beat_bytes, ports=ports, slots=slots, head_dim=head_dim, **members)


class Cache:
    """Hold the codes and their place.

    Members:
        codes: int8 [layers, kv_heads, keys or values, context, head_dim].
        address: address of the cache; a block of other bytes lies before it and one after it.
    """

    def __init__(self, config: AcceleratorConfig, *, layers: int, kv_heads: int, context: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        shape = (layers, kv_heads, 2, context, config.head_dim)
        self.config, self.codes = config, rng.integers(-128, 128, shape).astype(np.int8)
        self.address = 2 * block_bytes(config.ports)
        self.around = rng.integers(0, 256, block_bytes(config.ports)).astype(np.uint8)
        self.rng = rng

    @property
    def run(self) -> int:
        return self.config.kv_layout.beats(self.codes.shape[3])

    def start(self, layer: int) -> int:
        heads: int = self.codes.shape[1]
        return layer * heads * 2 * self.run

    def memory(self) -> bytearray:
        """Return the memory from address 0 on."""
        packed = [self.config.kv_layout.pack(run) for run in self.codes.reshape(-1, *self.codes.shape[3:])]
        logical = np.concatenate([self.around, self.around, np.concatenate(packed).reshape(-1), self.around])
        return bytearray(stripe(logical, ports=self.config.ports, port_bytes=self.config.port_bytes).tobytes())

    def new_rows(self, own: int) -> tuple[NDArray[np.int8], list[dict[str, int]], list[Any], list[Any]]:
        """Draw random rows int8 [layers, kv_heads, 2, slots, head_dim], and the items that bring them."""
        layers, heads = self.codes.shape[:2]
        config = self.config
        rows = self.rng.integers(-128, 128, (layers, heads, 2, config.slots, config.head_dim)).astype(np.int8)
        items = rows.reshape(layers, heads, 2, config.slots, -1, config.chunk).transpose(2, 0, 1, 4, 5, 3)
        flat = items.reshape(2, -1, config.chunk, config.slots)
        plan = [{"start": self.start(at), "run": self.run, "kv_heads": heads} for at in range(layers)]
        return rows, plan, flat[KEYS].tolist(), flat[VALUES].tolist()

    def copy_beats(
        self, committed: int, accepted: int, places: Sequence[int] | None = None
    ) -> tuple[list[dict[str, int]], list[dict[str, Any]]]:
        """Return the ``copies`` of a commit, and the beats that the read stream brings for them.

        Args:
            places: row of each slot; None: those after the committed ones.
        """
        kv, beats = self.config.kv_layout, []
        for heads in self.codes:
            for slot in range(self.config.slots):
                if not accepted >> slot & 1 or accepted & ((1 << slot) - 1) == (1 << slot) - 1:
                    continue
                group = (committed + slot if places is None else places[slot]) // kv.positions
                for run in heads.reshape(-1, *heads.shape[2:]):
                    part = kv.pack(run)[group * kv.chunks : (group + 1) * kv.chunks]
                    beats += [
                        {"data": beat.tolist(), "last": int(at == kv.chunks - 1), "spare": 0}
                        for at, beat in enumerate(part)
                    ]
        count = self.codes.shape[1]
        return [{"start": self.start(at), "run": self.run, "heads": count} for at in range(len(self.codes))], beats

    def commit(self, committed: int, accepted: int, places: Sequence[int] | None = None) -> int:
        """Move the codes; return the number of accepted positions."""
        slots = [slot for slot in range(self.config.slots) if accepted >> slot & 1]
        places = range(committed, committed + self.config.slots) if places is None else places
        for rank, slot in enumerate(slots):
            self.codes[..., places[rank], :] = self.codes[..., places[slot], :]
        return len(slots)
