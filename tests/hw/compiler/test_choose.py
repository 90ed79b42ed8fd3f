"""Test the choice of accelerators for boards. The cost of an accelerator may change, so no test states one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgedec.board import Board
from edgedec.boards import all_boards, board_names, find_board
from edgedec.errors import UnsupportedError, UsageError
from edgedec.graph.graph import KvState
from edgedec.hw.compiler.choose import config_for, ring_window, shape_of, small_config
from edgedec.hw.compiler.program import compile_model, laid_out
from edgedec.hw.compiler.shapes import shape_graph, shape_model
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.hw.plan.estimate import estimate
from edgedec.quantize.synthetic.random_bundle import SHAPES
from edgedec.reference.integer_profile.model import IntegerModel
from tests.edgedec.reference.integer_profile.support.make_models import KINDS, prepared, tiny

STORIES: dict[str, Any] = {  # configuration of the embedded model's size
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 2048,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "head_dim": 96,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
}


# configuration of the embedded drafter, for a memory that does not hold the embedded model
DRAFT = {
    **STORIES,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
}


def that_fits(device: Board, stories: IntegerModel) -> tuple[IntegerModel, dict[str, Any]]:
    """Return a model that fits the device, and the options that it needs."""
    return (shape_model(shape_graph(DRAFT)), {"context": 64}) if device.memory_bram36 else (stories, {})


@pytest.fixture(scope="module")
def stories() -> IntegerModel:
    return shape_model(shape_graph(STORIES))


@pytest.fixture(scope="module")
def large() -> IntegerModel:
    """Return half of BitNet-0.73B's layers, which take more than 32 MiB."""
    return shape_model(shape_graph(SHAPES["bitnet-0.73b"], layers=12))


def with_most(device: Board, **amounts: int) -> Board:
    """Return the board with these amounts of some resources, all of which may be used."""
    return replace(device, has={**device.has, **amounts}, most=dict.fromkeys(amounts, 1.0))


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize("name", board_names())
def test_every_board_runs_the_embedded_model(name: str, stories: IntegerModel) -> None:
    device = find_board(name)
    model, options = that_fits(device, stories)
    config = config_for_board(model, device, **options)
    assert estimate(config).beyond(device) == []
    assert config == config_for_board(shape_model(model.graph), device, **options)
    assert config.clock_hz == device.clock_hz
    assert config.ultra == (device.has["uram"] > 0)
    assert config.port_bytes >= min(device.port_bytes, config.beat_bytes)
    assert config.ports <= device.ports
    if config.slots < (device.slots or 8):
        assert estimate(replace(config, slots=config.slots + 1)).beyond(device), "more slots would fit"


@pytest.mark.parametrize("name", board_names())
def test_the_stream_is_as_wide_as_the_memory_is_fast(name: str, stories: IntegerModel) -> None:
    """Check that it takes nine tenths of the bandwidth, and that half its width would not; all boards have room for
    that.
    """
    device = find_board(name)
    model, options = that_fits(device, stories)
    config = config_for_board(model, device, **options)
    rate = config.beat_bytes * config.clock_hz
    assert rate >= 0.9 * device.bandwidth_bytes_s
    assert config.beat_bytes == 4 or rate / 2 < 0.9 * device.bandwidth_bytes_s


def test_zynq_boards_run_bitnet(large: IntegerModel) -> None:
    for name in ("kv260", "ultra96-v2", "pynq-z2", "arty-z7-20"):
        assert estimate(config_for_board(large, find_board(name))).beyond(find_board(name)) == []


def test_weights_larger_than_the_memory_are_refused(large: IntegerModel) -> None:
    message = rf"^the model does not fit ulx3s-85f: with slots=1, .* bytes, the memory has {32 << 20}; it fits arty-z7"
    with pytest.raises(UnsupportedError, match=message):
        config_for_board(large, find_board("ulx3s-85f"), others=all_boards(), slots=1)
    with pytest.raises(UnsupportedError, match=r"; use a smaller model, or a larger board$"):
        config_for_board(large, find_board("ulx3s-85f"), slots=1, beat_bytes=4)


@pytest.mark.thorough(sample=5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", board_names())
def test_the_program_fits_its_configuration(kind: str, name: str) -> None:
    """Compile for the configuration, with mantissas of groups too, and compare with the board's memory."""
    model, device = tiny(kind)[2], find_board(name)
    options: dict[str, Any] = {"context": 256} if device.memory_bram36 else {}
    config = config_for_board(model, device, **options)
    assert config.scaling <= (config.beat_bytes >= 8)
    program = compile_model(model, config)
    assert laid_out(program.sizes, config.ports)[1] <= device.memory_bytes


def test_memory_is_counted_to_the_byte() -> None:
    model = tiny("native")[2]
    device = replace(find_board("kv260"), cma_bytes=None)
    config = config_for_board(model, device, slots=1, beat_bytes=4)
    size = laid_out(compile_model(model, config).sizes, config.ports)[1]
    config_for_board(model, replace(device, memory_bytes=size), slots=1, beat_bytes=4)
    with pytest.raises(
        UnsupportedError, match=rf"take {size} bytes, the memory has {size - 1}; it fits with context=\d+$"
    ):
        config_for_board(model, replace(device, memory_bytes=size - 1), slots=1, beat_bytes=4)


def test_slots_are_reduced_before_the_width_of_the_stream(stories: IntegerModel) -> None:
    device = find_board("pynq-z2")
    whole = config_for_board(stories, device)
    for slots in (1, 2):
        needs = estimate(replace(whole, slots=slots)).on(device)
        config = config_for_board(stories, with_most(device, lut=needs["lut"]))
        assert (config.beat_bytes, config.slots) == (whole.beat_bytes, slots)
    luts = estimate(replace(whole, slots=1)).on(device)["lut"]
    narrower = config_for_board(stories, with_most(device, lut=luts - 1))
    assert narrower.beat_bytes < whole.beat_bytes


def test_a_refusal_has_numbers_and_an_alternative(stories: IntegerModel) -> None:
    """Give one LUT too few for the narrowest accelerator with one slot, which a smaller context or another board has."""
    device = with_most(find_board("ulx3s-85f"), lut=100)
    with pytest.raises(UnsupportedError) as caught:
        config_for_board(stories, device, others=all_boards())
    smallest = config_for_board(stories, find_board("ulx3s-85f"), slots=1, beat_bytes=4)
    need = estimate(smallest).on(device)["lut"]
    message = str(caught.value)
    assert f"with slots=1, beat_bytes=4 and context=1024 it takes {need} lut, of 100 at most 100 can be used" in message
    assert message.endswith("; it fits ulx3s-85f")  # the real board has more
    device_with_ram = with_most(
        find_board("ulx3s-85f"), bram36=estimate(replace(smallest, context=256)).on(device)["bram36"]
    )
    with pytest.raises(UnsupportedError, match=r"bram36.*; it fits with context=(256|512)$"):
        config_for_board(stories, device_with_ram)


def test_options_override_the_choice(stories: IntegerModel) -> None:
    config = config_for_board(stories, find_board("kv260"), slots=3, beat_bytes=16, context=128, ports=1)
    assert (config.slots, config.beat_bytes, config.context, config.ports) == (3, 16, 128, 1)
    slow = config_for_board(stories, find_board("pynq-z2"), clock_hz=60e6)
    assert slow.beat_bytes * 60e6 >= 0.9 * find_board("pynq-z2").bandwidth_bytes_s
    with pytest.raises(UsageError, match="slots must be 1 to 8, not 9"):
        config_for_board(stories, find_board("kv260"), slots=9)
    with pytest.raises(UnsupportedError, match="with slots=8, beat_bytes=64"):
        config_for_board(stories, find_board("ulx3s-85f"), slots=8, beat_bytes=64)


@pytest.mark.parametrize("head_dim", [2, 8, 96])
def test_the_softmax_keeps_up_with_the_stream(head_dim: int) -> None:
    """Check that a group of positions takes at least as many beats as the softmax takes cycles for it, if possible."""
    model = shape_model(shape_graph({**STORIES, "head_dim": head_dim, "num_hidden_layers": 1}))
    config = config_for_board(model, find_board("kv260"))
    layout = config.kv_layout
    assert config.softmax_lanes == 8 or layout.positions <= config.softmax_lanes * layout.chunks
    assert config.softmax_lanes == 1 or layout.positions > config.softmax_lanes // 2 * layout.chunks


def test_the_smallest_has_no_board() -> None:
    model = tiny("native")[2]
    assert config_for(model, beat_bytes=8).ports == 2
    assert config_for(model).ports == 4


def test_the_members_that_a_model_does_not_give() -> None:
    model = tiny("native")[2]
    config = small_config(model)
    assert (config.beat_bytes, config.slots, config.ports, config.context) == (16, 4, 1, 128)
    assert (config.prefetch_beats, config.top_k, config.ultra) == (256, 4, False)
    assert [config_for(model, beat_bytes=width).ports for width in (4, 8, 16, 32)] == [1, 2, 4, 4]


@pytest.mark.parametrize(
    ("windows", "largest"),
    [
        ([], 0),
        ([(None, 0)], 0),
        ([(1, 0)], 2),  # the least that a configuration may have
        ([(2, 0)], 2),
        ([(3, 0), (None, 0), (7, 0), (5, 0)], 7),
        ([(3, 0), (7, 1)], 3),  # a layer that keeps its first positions is no ring
        ([(1 << 16, 0)], 1 << 16),
        ([(3, 0), ((1 << 16) + 1, 0)], 3),
    ],
)
def test_the_window_of_rings_is_the_largest_that_hides_positions(
    windows: list[tuple[int | None, int]], largest: int
) -> None:
    states = [KvState(name="kv", kv_heads=1, head_dim=8, window=window, sinks=sinks) for window, sinks in windows]
    assert ring_window(states) == largest


@pytest.mark.parametrize(("intermediate", "rows"), [(20, 80), (36, 80), (42, 90), (44, 90), (46, 100), (5000, 1280)])
def test_two_rounds_of_the_longest_matrix_fill_a_tile(intermediate: int, rows: int) -> None:
    """Compare with sizes by hand: the least multiple of ten that is twice the rows, which are 40 at least, up to 1,280."""
    sizes = {
        "hidden_size": 20,
        "head_dim": 10,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
    }
    model = shape_model(shape_graph({**STORIES, **sizes, "vocab_size": 40, "intermediate_size": intermediate}))
    assert shape_of(model)["tile_rows"] == rows


def windowed(window: int, sinks: int) -> IntegerModel:
    """Return a small model whose layers have a window."""
    graph, weights, _ = tiny("native")
    states = {name: replace(state, window=window, sinks=sinks) for name, state in graph.states.items()}
    return prepared(replace(graph, states=states), weights)


def test_sequences_are_those_of_the_texts_as_far_as_there_are_slots() -> None:
    model = tiny("native")[2]
    assert [small_config(model, texts=texts).sequences for texts in (1, 3, 9)] == [1, 3, 4]
    assert small_config(model, texts=3, sequences=2, slots=2).sequences == 2
    board, sequences = find_board("kv260"), dict[int, int]()
    for texts in (1, 3, 9):
        config = config_for_board(model, board, texts=texts)
        sequences[texts] = config.sequences
        assert config.sequences == min(texts, config.slots)
    assert sequences[1] == 1
    assert config_for_board(model, board, sequences=2).slots >= 2
    with pytest.raises(UsageError, match=r"sequences must be at most the slots, \d on ulx3s-85f, not 8"):
        config_for_board(model, replace(find_board("ulx3s-85f"), slots=4), sequences=8)


def test_rings_hold_one_sequence() -> None:
    """A window that hides no position of a sequence's part of the context needs no ring."""
    model = windowed(9, 0)
    assert small_config(model, context=512).window == 9
    with pytest.raises(UnsupportedError, match=r"rings hold one sequence, not 4: set window=0 .* \(--parallel 1\)"):
        small_config(model, context=2048, texts=4)
    assert small_config(model, context=2048, texts=4, window=0).window == 0
    assert small_config(model, context=160, texts=4).window == 0
    with pytest.raises(UnsupportedError, match="rings hold one sequence, not 3"):
        config_for_board(model, find_board("kv260"), context=4096, sequences=3)


def test_first_positions_beside_a_window_are_those_of_one_sequence() -> None:
    model = windowed(9, 4)
    assert small_config(model, context=512).sequences == 1
    for members in ({}, {"instructions": 512}):
        with pytest.raises(UnsupportedError, match=r"sees its first 4 positions .*--kv-policy full, or .*--parallel 1"):
            small_config(model, context=512, texts=2, **members)
