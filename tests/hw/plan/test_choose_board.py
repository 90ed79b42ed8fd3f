"""Test what stands in a chosen configuration beside the widths that ``tests/hw/compiler/test_choose.py`` looks at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgedec.boards import find_board
from edgedec.errors import UnsupportedError
from edgedec.hw.compiler.shapes import shape_graph, shape_model
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.hw.plan.estimate import estimate
from edgedec.quantize.synthetic.random_bundle import SHAPES
from edgedec.reference.integer_profile.model import IntegerModel
from tests.edgedec.reference.integer_profile.support.make_models import tiny


@pytest.fixture(scope="module")
def model() -> IntegerModel:
    return tiny("native")[2]


@pytest.mark.parametrize(("board", "beats"), [("kv260", 4096), ("ulx3s-85f", 1024)])
def test_block_ram_holds_fewer_beats_ahead_than_ultraram(model: IntegerModel, board: str, beats: int) -> None:
    assert config_for_board(model, find_board(board), context=64).prefetch_beats == beats


@pytest.mark.parametrize(("ports", "beat_bytes"), [(2, 8), (4, 16)])
def test_a_port_has_four_bytes_at_least(model: IntegerModel, ports: int, beat_bytes: int) -> None:
    """Choose at a clock at which the narrowest beat is faster than the memory."""
    config = config_for_board(model, find_board("kv260"), context=64, ports=ports, clock_hz=20_000_000_000, slots=1)
    assert (config.ports, config.beat_bytes) == (ports, beat_bytes)


@pytest.mark.thorough
def test_heads_that_share_keys_attend_together() -> None:
    model, board = shape_model(shape_graph(SHAPES["bitnet-2b4t"])), find_board("kv260")
    config = config_for_board(model, board)
    assert (config.slots, config.shared, config.beat_bytes) == (7, True, 64)
    assert not estimate(config).beyond(board)
    # It costs the eighth slot, and no more than that.
    assert estimate(replace(config, slots=8)).beyond(board)
    assert not estimate(replace(config, slots=8, shared=False)).beyond(board)
    assert config_for_board(model, board, shared=False).shared is False
    assert config_for_board(model, board, slots=1).shared is False  # a pass of one token leaves no slot unused


def test_a_board_may_limit_the_slots(model: IntegerModel) -> None:
    board = find_board("kv260")
    assert config_for_board(model, board, context=64).slots > 3
    assert config_for_board(model, replace(board, slots=3), context=64).slots == 3
    assert config_for_board(model, find_board("ulx3s-85f"), context=64).slots == 2


def test_a_memory_that_is_faster_than_the_widest_beat_gets_the_widest(model: IntegerModel) -> None:
    board = find_board("kv260")
    assert config_for_board(model, board, context=64, slots=1).beat_bytes == 64
    assert board.bandwidth_bytes_s > 2 * 64 * 100_000_000
    assert config_for_board(model, board, context=64, slots=1, clock_hz=100_000_000).beat_bytes == 64


def test_a_message_says_which_block_ram_is_the_memory(model: IntegerModel) -> None:
    """Let a board have block RAM for its memory alone, and next to no LUTs."""
    board = find_board("orangecrab-85f")
    small = replace(board, has={**board.has, "bram36": 76, "lut": 1000})
    lut = r"it takes \d+ lut, of 1000 at most 750 can be used"
    bram36 = r"it takes \d+ bram36, of 76 at most 0 can be used where 76 are the memory"
    with pytest.raises(UnsupportedError, match=f"and context=64 {lut} and {bram36}; use a smaller model"):
        config_for_board(model, small, context=64)
