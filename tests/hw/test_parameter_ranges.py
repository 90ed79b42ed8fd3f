"""Check that every component accepts the ends of its parameters' ranges, and refuses the next values, by name and
range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgedec.hw.attention.head_buffer import HeadBuffer
from edgedec.hw.attention.head_feeder import HeadFeeder
from edgedec.hw.attention.head_norm import HeadNorm
from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.issue import AttentionIssue
from edgedec.hw.attention.rotary import Rotary
from edgedec.hw.attention.score_cap import ScoreCap
from edgedec.hw.attention.score_memory import ScoreMemory
from edgedec.hw.attention.shared_heads import SharedQueries
from edgedec.hw.attention.softmax import Softmax
from edgedec.hw.attention.weighted_values import WeightedValues
from edgedec.hw.blocks.collector import Collector
from edgedec.hw.blocks.divider import Divider
from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.blocks.isqrt import Root
from edgedec.hw.blocks.normalize import Normalize
from edgedec.hw.blocks.shallow_fifo import ShallowFifo
from edgedec.hw.blocks.vector_memory import VectorMemory
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.control.counters import CounterBlock
from edgedec.hw.control.read_issue import ReadIssue
from edgedec.hw.control.register_block import RegisterBlock
from edgedec.hw.isa.kv_layout import KvLayout
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.hw.logits.result_writer import ResultWriter
from edgedec.hw.matrix.code_memory import CodeMemory
from edgedec.hw.matrix.drain import Drain
from edgedec.hw.matrix.group_mantissas import GroupMantissas
from edgedec.hw.matrix.lookup_engine import LookupEngine
from edgedec.hw.matrix.lookup_index import LookupIndex
from edgedec.hw.matrix.row_packer import RowPacker
from edgedec.hw.matrix.sequencer import MatrixSequencer
from edgedec.hw.matrix.table_builder import TableBuilder
from edgedec.hw.memory.axi import axi4_read, axi4_write, axi_lite
from edgedec.hw.memory.bursts import Bursts
from edgedec.hw.memory.cache_writer import CacheWriter
from edgedec.hw.memory.write_master import WriteMaster
from edgedec.hw.sink_router import SinkRouter
from edgedec.hw.vector.absolute_maximum import AbsoluteMaximum
from edgedec.hw.vector.gated_activation import GatedActivation
from edgedec.hw.vector.output_norm import OutputNorm
from edgedec.hw.vector.requantizer import Requantizer
from edgedec.hw.vector.residual import Residual
from edgedec.hw.vector.residual_path import ResidualPath
from edgedec.hw.vector.rms_norm import RmsNorm
from edgedec.hw.vector.root_scaler import RootScaler
from edgedec.hw.vector.sums_of_squares import SumsOfSquares

DEPTH = (1, 1 << 16)
LANES = (1, 64)
SLOTS = (1, 8)
HEADS: dict[str, Any] = {"beat_bytes": 16, "head_dim": 16, "chunk": 2, "slots": 2, "context": 9}
SHAPE: dict[str, Any] = {"shape": HeadShape(**HEADS)}
CONFIG = AcceleratorConfig()

# component, its other parameters, and the ranges of the tested ones
RANGES: list[tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[int, int]]]] = [
    (AbsoluteMaximum, {"slots": 1}, {"slots": SLOTS, "width": (2, 64)}),
    (AttentionIssue, SHAPE, {"query_bits": (8, 16)}),
    (axi_lite, {}, {"address_bits": (2, 64)}),
    (axi4_read, {"address_bits": 32, "data_bytes": 8}, {"address_bits": (12, 64), "id_bits": (1, 32)}),
    (axi4_write, {"address_bits": 32, "data_bytes": 8}, {"address_bits": (12, 64), "id_bits": (1, 32)}),
    (
        Bursts,
        {"address_bits": 32, "data_bytes": 8, "length_bits": 8},
        {"address_bits": (12, 64), "length_bits": (1, 40)},
    ),
    (CacheWriter, {"config": CONFIG}, {"address_bits": (16, 64)}),
    (CodeMemory, {"slots": 1, "columns": 4, "depth": 2}, {"slots": SLOTS, "columns": (1, 64), "depth": DEPTH}),
    (CodeMemory, {"slots": 1, "columns": 4, "depth": 2}, {"pieces": (1, 4)}),
    (Collector, {"width": 8, "slots": 1}, {"width": (1, 64), "slots": SLOTS, "lanes": LANES}),
    (CounterBlock, {}, {"width": (8, 64), "descriptors": (2, 1 << 16)}),
    (
        Divider,
        {"numerator_bits": 9, "denominator_bits": 5},
        {"numerator_bits": (1, 64), "denominator_bits": (1, 64), "quotient_bits": (1, 9)},
    ),
    (Drain, {"slots": 1}, {"slots": SLOTS, "lanes": LANES}),
    (Fifo, {"shape": 3, "depth": 2}, {"depth": (2, 1 << 16)}),
    (GatedActivation, {"slots": 1}, {"slots": SLOTS}),
    (GroupMantissas, {"beat_bytes": 8, "tile_words": 2}, {"beat_bytes": (5, 64), "tile_words": DEPTH}),
    (
        HeadBuffer,
        {"bits": 8, "slots": 1, "chunk": 2, "chunks": 2},
        {"bits": (1, 18), "slots": SLOTS, "chunk": LANES, "chunks": (1, 2048)},
    ),
    *(
        (
            feeder,
            {"width": 8, "slots": 1, "depth": 2048, "head_dim": 64, "chunk": 1},
            {"width": (1, 18), "slots": SLOTS, "depth": (64, 1 << 16), "chunk": LANES, "head_dim": (1, 2048)},
        )
        for feeder in (HeadFeeder, SharedQueries)
    ),
    (
        KvLayout,
        {"beat_bytes": 8, "head_dim": 64, "chunk": 1},
        {"head_dim": (1, 2048), "beat_bytes": LANES, "chunk": (1, 8)},
    ),
    (LookupEngine, {"beat_bytes": 4, "slots": 1}, {"slots": SLOTS, "beat_bytes": (4, 64)}),
    (LookupIndex, {}, {"beat_bytes": (4, 64)}),
    (MatrixSequencer, {"tile_words": 2, "depth": 2}, {"tile_words": (1, (1 << 16) - 1), "depth": (1, (1 << 16) - 1)}),
    (WeightedValues, SHAPE, {"out_lanes": (1, 2)}),
    (HeadShape, HEADS, {"slots": SLOTS, "context": DEPTH, "lanes": (1, 8)}),
    (HeadNorm, {"slots": 1, "head_dim": 8}, {"slots": SLOTS, "head_dim": (2, 2048)}),
    (Normalize, {"bits": 64}, {"bits": (16, 64), "mantissa_bits": (1, 64), "tag_bits": (0, 8)}),
    (OutputNorm, {"slots": 1, "depth": 2}, {"slots": SLOTS, "depth": (1, 1 << 14)}),
    (ReadIssue, {"config": CONFIG}, {"address_bits": (16, 64)}),
    (RegisterBlock, {"register_map": REGISTER_MAP}, {"address_bits": ((REGISTER_MAP.bytes - 1).bit_length(), 64)}),
    (Requantizer, {"slots": 1}, {"slots": SLOTS}),
    (Residual, {"slots": 1}, {"slots": SLOTS, "lanes": LANES, "width": (2, 64)}),
    (ResidualPath, {"slots": 1, "depth": 2}, {"slots": SLOTS, "depth": DEPTH}),
    (RmsNorm, {"slots": 1}, {"slots": SLOTS}),
    (Root, {}, {"bits": (2, 64)}),
    (RootScaler, {"slots": 1, "bits": 18}, {"slots": SLOTS, "bits": (2, 27)}),
    (Rotary, {"slots": 1, "head_dim": 32}, {"slots": SLOTS, "head_dim": (2, 2048), "lanes": (1, 16)}),
    (RowPacker, {"lanes": 8, "slots": 1, "width": 32}, {"lanes": (2, 64), "slots": SLOTS, "width": (19, 64)}),
    (ScoreCap, {"slots": 1, "lanes": 1, "bits": 20}, {"slots": SLOTS, "lanes": (1, 8), "bits": (2, 40)}),
    (ScoreMemory, SHAPE, {"query_bits": (8, 16)}),
    (SinkRouter, {"slots": 1, "depth": 2}, {"slots": SLOTS, "depth": DEPTH}),
    (ShallowFifo, {"shape": 3, "depth": 2}, {"depth": (2, 64)}),
    (Softmax, {"slots": 1}, {"slots": SLOTS, "lanes": (1, 8)}),
    (SumsOfSquares, {"slots": 1}, {"slots": SLOTS}),
    (TableBuilder, {"beat_bytes": 4, "slots": 1}, {"slots": SLOTS}),
    (
        VectorMemory,
        {"width": 8, "slots": 1, "depth": 2},
        {"width": (1, 64), "slots": SLOTS, "depth": DEPTH, "lanes": LANES},
    ),
    (WriteMaster, {"address_bits": 32, "data_bytes": 8}, {"outstanding": LANES}),
    (ResultWriter, {"config": CONFIG}, {"address_bits": (16, 64), "batch": (1, 128)}),
]


@pytest.mark.rtl(sample=30)
@pytest.mark.parametrize(
    ("make", "other_parameters", "name", "minimum", "maximum"),
    [
        pytest.param(make, other_parameters, name, *ends, id=f"{make.__name__} {name}")
        for make, other_parameters, ranges in RANGES
        for name, ends in ranges.items()
    ],
)
def test_the_ends_of_a_range_are_accepted_and_the_next_values_refused(
    make: Callable[..., Any], other_parameters: dict[str, Any], name: str, minimum: int, maximum: int
) -> None:
    for end in (minimum, maximum):
        make(**other_parameters | {name: end})
    for value in (minimum - 1, maximum + 1, float(minimum), True):
        with pytest.raises(ValueError, match=f"^{name} must be an integer from {minimum} to {maximum}, not {value}$"):
            make(**other_parameters | {name: value})
