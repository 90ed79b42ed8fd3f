"""Compare lookup engine and partial sums in sequence with NumPy: whole matrices, of planes and groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib.wiring import Component, connect, flipped
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.hw.matrix._table_walk import sum_bits
from edgedec.hw.matrix.lookup_engine import LookupEngine
from edgedec.reference.integer_profile.numbers import I64
from tests.hw.support.bench_partial_sums import QueuedSums
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import from_words
from tests.hw.support.reference_ternary import beat_of, blocks_of, padded_to


class Matmul(Component):
    def __init__(self, *, beat_bytes: int, slots: int, tile_words: int) -> None:
        self.engine = LookupEngine(beat_bytes=beat_bytes, slots=slots)
        self.partial = QueuedSums(width=sum_bits(beat_bytes), slots=slots, tile_words=tile_words)
        self._outer: dict[str, tuple[Any, str]] = {
            "codes": (self.engine, "codes"),
            "weights": (self.engine, "weights"),
            "sweeps": (self.partial, "sweeps"),
            "mantissas": (self.partial, "mantissas"),
            "output": (self.partial, "output"),
        }
        super().__init__({name: part.signature.members[port] for name, (part, port) in self._outer.items()})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.engine, m.submodules.partial = self.engine, self.partial
        connect(m, self.engine.sums, self.partial.sums)
        for name, (part, port) in self._outer.items():
            connect(m, flipped(getattr(self, name)), getattr(part, port))
        return m


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Hold planes of trits [planes, rows, columns], and mantissas of each plane, row and group of ``group`` columns,
    or none.
    """

    trits: I64
    mantissas: I64 | None
    group: int

    def times(self, codes: I64) -> I64:
        """Multiply [slots, columns] -> [slots, rows]."""
        weights = self.trits
        if self.mantissas is not None:
            weights = weights * self.mantissas.repeat(self.group, axis=2)[:, :, : weights.shape[2]]
        product: I64 = codes @ weights.sum(axis=0).T
        return product

    def inputs(self, codes: I64, beat_bytes: int, tile_words: int) -> dict[str, Any]:
        """Return what each port gets, by row tile, block of columns, plane, row."""
        planes = np.stack([padded_to(plane, 5, beat_bytes) for plane in self.trits])
        blocks, words = blocks_of(codes, beat_bytes), planes.shape[1] // 5
        fed: dict[str, list[Any]] = {name: [] for name in ("codes", "weights", "sweeps", "mantissas")}
        for tile in range(0, words, tile_words):
            height = min(tile_words, words - tile)
            fed["codes"] += blocks
            for block in range(len(blocks)):
                for plane in range(len(planes)):
                    fed["sweeps"].append(
                        {
                            "words": height,
                            "first": block == plane == 0,
                            "final": block == len(blocks) - 1 and plane == len(planes) - 1,
                            "scaled": self.mantissas is not None,
                            "last": tile + height == words,
                        }
                    )
                    for word in range(tile, tile + height):
                        rows = slice(5 * word, 5 * word + 5)
                        columns = slice(block * beat_bytes, (block + 1) * beat_bytes)
                        last = plane == len(planes) - 1 and word == tile + height - 1
                        fed["weights"].append({"values": beat_of(planes[plane, rows, columns]), "last": int(last)})
                        if self.mantissas is not None:
                            group = padded_to(self.mantissas[plane], 5, 1)[rows, block * beat_bytes // self.group]
                            fed["mantissas"].append(group.tolist())
        return fed


def check(
    beat_bytes: int,
    slots: int,
    *,
    rows: int,
    columns: int,
    planes: int = 1,
    group: int = 0,
    tile_words: int = 3,
    idle: float = 0.0,
    stall: float = 0.0,
    seed: int = 0,
) -> None:
    rng = np.random.default_rng(seed)
    mantissas = rng.integers(0, 256, (planes, rows, -(-columns // group))) if group else None
    matrix = Matrix(trits=rng.integers(-1, 2, (planes, rows, columns)), mantissas=mantissas, group=group)
    codes = rng.integers(-127, 128, (slots, columns))
    inputs = matrix.inputs(codes, beat_bytes, tile_words)
    component = Matmul(beat_bytes=beat_bytes, slots=slots, tile_words=tile_words)
    words = -(-rows // 5)
    outputs = run(component, inputs, {"output": words}, idle=idle, stall=stall, seed=seed)["output"]
    (product,) = from_words(outputs, [rows])
    assert np.array_equal(product, matrix.times(codes))


@pytest.mark.nightly(sample=4)
@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("slots", [1, 2, 4, 8])
@pytest.mark.parametrize("beat_bytes", [4, 8, 16])
def test_every_width_and_number_of_slots_is_exact(beat_bytes: int, slots: int) -> None:
    check(beat_bytes, slots, rows=23, columns=2 * beat_bytes + 3, planes=2, idle=0.2, stall=0.2, seed=slots)


@pytest.mark.nightly
@pytest.mark.rtl
@settings(max_examples=15)
@given(data=st.data())
def test_matrices_of_all_shapes_are_exact_with_stalls(data: st.DataObject) -> None:
    chance = st.sampled_from([0.0, 0.3, 0.7])
    check(
        data.draw(st.sampled_from([4, 8])),
        data.draw(st.integers(1, 2)),
        rows=data.draw(st.integers(1, 23)),
        columns=data.draw(st.integers(1, 27)),
        planes=data.draw(st.integers(1, 3)),
        group=data.draw(st.sampled_from([0, 8, 16])),
        tile_words=data.draw(st.integers(1, 6)),
        idle=data.draw(chance),
        stall=data.draw(chance),
        seed=data.draw(st.integers(0, 1000)),
    )


@pytest.mark.nightly
def test_groups_of_64_columns_at_full_width_are_exact() -> None:
    check(64, 8, rows=17, columns=150, planes=2, group=64, idle=0.1, stall=0.1)
