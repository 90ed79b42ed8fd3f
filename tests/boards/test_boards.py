"""Run one suite over all boards: a new board is one file, and passes or says why not."""

from __future__ import annotations

import json
import pickle
import textwrap
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from edgedec import boards
from edgedec.board import FAMILIES, MEMORY_MODELS, RESOURCES, Board
from edgedec.boards import all_boards, board_names, find_board
from edgedec.demo import DRAFT, TARGET
from edgedec.errors import UnsupportedError, UsageError
from edgedec.graph.graph import Graph
from edgedec.hw.compiler.shapes import shape_graph, shape_model
from edgedec.hw.compiler.ternary_image import TernaryLayout
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.hw.plan.estimate import estimate
from edgedec.quantize.synthetic.random_bundle import SHAPES
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.sim.ddr import parameters

HAS = {
    "arty-z7-20": (53_200, 106_400, 140, 0, 220),  # AMD DS190
    "kv260": (117_120, 234_240, 144, 64, 1_248),  # AMD DS987
    # nextpnr-ecp5 --85k: 83,640 TRELLIS_COMB and TRELLIS_FF, 208 DP16KD, 156 MULT18X18D
    "orangecrab-85f": (83_640, 83_640, 208 // 2, 0, 156),
    "pynq-z2": (53_200, 106_400, 140, 0, 220),
    "ultra96-v2": (70_560, 141_120, 216, 0, 360),  # AMD DS891
    "ulx3s-85f": (83_640, 83_640, 208 // 2, 0, 156),
}
PEAKS = {  # bytes of the data bus x transfers per second
    "arty-z7-20": 2 * 1_050e6,
    "kv260": 8 * 2_133e6,
    "orangecrab-85f": 8 * 90e6,  # block RAM: a beat per cycle
    "pynq-z2": 2 * 1_050e6,
    "ultra96-v2": 4 * 1_067e6,
    "ulx3s-85f": 2 * 100e6,  # the controller's clock; the chip allows 143
}
NAMES = pytest.mark.parametrize("name", board_names())


def _shape(folder: Path) -> Graph:
    """Return the shape of an embedded model with a separate int8 head."""
    config = json.loads((folder / "config.json").read_text())
    return shape_graph({**config, "tie_word_embeddings": False})


@pytest.fixture(scope="module")
def embedded() -> IntegerModel:
    return shape_model(_shape(TARGET))


@pytest.fixture(scope="module")
def bitnet() -> IntegerModel:
    """Return the shape of half of its layers."""
    return shape_model(shape_graph(SHAPES["bitnet-0.73b"], layers=12))


def test_the_promised_boards_are_listed() -> None:
    assert set(board_names()) == set(HAS)
    assert [board.name for board in all_boards()] == board_names()


@NAMES
def test_a_board_is_frozen_data(name: str) -> None:
    board = find_board(name)
    assert type(board) is Board
    assert board.name == name
    with pytest.raises(FrozenInstanceError):
        board.clock_hz = 1e9  # type: ignore[misc]
    for table in (board.has, board.most, board.sources):
        with pytest.raises(TypeError, match="does not support item assignment"):
            table["lut"] = 1  # type: ignore[index]
    assert pickle.loads(pickle.dumps(board)) == board == Board(**board.members())
    json.dumps(board.members())


@NAMES
def test_every_figure_has_a_source(name: str) -> None:
    board = find_board(name)
    members = {member.name for member in fields(Board)} - {"name", "sources"}
    facts = {member for member in members if getattr(board, member) not in (None, ())}
    assert facts - set(board.sources) == set()


@NAMES
def test_resources_equal_those_of_the_data_sheet(name: str) -> None:
    board = find_board(name)
    assert dict(board.has) == dict(zip(RESOURCES, HAS[name], strict=True))
    assert board.memory_peak_bytes_s == pytest.approx(PEAKS[name], rel=2e-3)
    goals = {"lut": 0.75, "bram36": 0.75, "uram": 0.75, "dsp": 0.65}  # the KV260's, everywhere
    assert dict(board.most) == goals | ({"bram36": 1.0} if board.memory_bram36 else {}), "but where it is the memory"


@NAMES
def test_measured_bandwidths_name_their_measurement(name: str) -> None:
    board = find_board(name)
    assert (board.memory_measured_bytes_s is not None) == (name == "kv260")
    assert board.bandwidth_kind == ("measured" if name == "kv260" else "peak")
    assert board.bandwidth_source.startswith("measured: " if name == "kv260" else "not measured, peak: ")
    assert board.bandwidth_bytes_s == (15.97e9 if name == "kv260" else board.memory_peak_bytes_s)


@NAMES
def test_members_are_consistent(name: str) -> None:
    board = find_board(name)
    zynq = board.family.startswith("zynq")
    assert (board.link == "axi") == zynq == (board.host_cores is not None)
    assert zynq or board.oscillator_hz, "a device without a processor gets its clock from a pin"
    assert board.port_protocol == ("AXI3" if board.family == "zynq-7000" else "AXI4")
    assert board.ports * board.port_bytes * board.clock_hz >= 0.9 * board.bandwidth_bytes_s, "ports as fast as memory"
    assert (board.part[:4].lower() == "lfe5") == (board.family == "ecp5")
    assert not zynq or board.part.startswith("xc7z" if board.family == "zynq-7000" else ("xczu", "xck"))


@pytest.mark.rtl(sample=1)
@NAMES
def test_the_embedded_model_gets_an_accelerator(name: str, embedded: IntegerModel) -> None:
    """Check the drafter on boards whose memory is smaller than the model's weights; the refusals name what would fit."""
    board, model, context = find_board(name), embedded, 1024
    if board.memory_bram36:
        with pytest.raises(UnsupportedError, match=rf"the memory has {board.memory_bytes}; it fits ulx3s-85f$"):
            config_for_board(embedded, board, others=all_boards())
        model, context = shape_model(_shape(DRAFT)), 64
        with pytest.raises(UnsupportedError, match=rf"the memory has {board.memory_bytes}; it fits with context=64$"):
            config_for_board(model, board, others=all_boards())
    config = config_for_board(model, board, context=context)
    needs = estimate(config)
    assert needs.beyond(board) == []
    assert all(0 <= share <= 1 for share in needs.shares(board).values())
    assert config.ports <= board.ports
    assert config.port_bytes <= board.port_bytes
    assert config.clock_hz == board.clock_hz


@NAMES
def test_half_of_bitnet_gets_an_accelerator_or_a_reason(name: str, bitnet: IntegerModel) -> None:
    board = find_board(name)
    needed_bytes = 679.5e6 / 2 / 5 + 49.2e6 + 12 * 2 * 1024 * 1536  # trits, head, keys and values
    if board.memory_bytes > needed_bytes:
        assert estimate(config_for_board(bitnet, board)).beyond(board) == []
        return
    with pytest.raises(
        UnsupportedError, match=rf"the memory has {board.memory_bytes}; it fits (with context=|arty-z7)"
    ):
        config_for_board(bitnet, board, others=all_boards(), slots=1, beat_bytes=8)


@NAMES
def test_a_memory_has_a_model_or_none_is_declared(name: str) -> None:
    board = find_board(name)
    if board.memory_model is None:
        assert "flat rate" in board.sources["memory_model"]
        return
    model = getattr(parameters, board.memory_model)
    assert isinstance(model, parameters.DdrParameters)
    assert (model.ports, model.port_bytes, model.port_hz) == (board.ports, board.port_bytes, board.clock_hz)
    assert model.clock_hz * 4 * 8 == pytest.approx(board.memory_peak_bytes_s, rel=2e-3), "four transfers, 64 bits"


def test_every_memory_model_belongs_to_a_board() -> None:
    assert {board.memory_model for board in all_boards()} - {None} == set(MEMORY_MODELS)


def test_families_name_the_source_of_their_conversions() -> None:
    assert {find_board(name).family for name in board_names()} == set(FAMILIES)
    for family in FAMILIES.values():
        assert family.source
        assert "" in family.lut_of
        assert "" in family.dsp_of


SMALL: dict[str, Any] = {
    "name": "my-board",
    "title": "Mine",
    "part": "LFE5U-25F-6BG256C",
    "family": "ecp5",
    "has": dict(zip(RESOURCES, (24_288, 24_288, 28, 0, 28), strict=True)),
    "clock_hz": 50e6,
    "memory_kind": "DDR3",
    "memory_bytes": 1 << 28,
    "memory_peak_bytes_s": 1e9,
    "ports": 1,
    "port_bytes": 8,
    "port_protocol": "AXI4",
    "burst_beats": 64,
    "link": "uart",
    "baud": 115_200,
}
SOURCE = f"from edgedec.board import Board\n\nBOARD = Board(**{SMALL!r})\n"


def test_a_new_file_is_a_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that its place alone makes a file a board; a file with an underscore and a folder are not imported."""
    (tmp_path / "my_board.py").write_text(SOURCE)
    (tmp_path / "_build_flow.py").write_text("import a_tool_that_is_not_there\n\n\ndef build(board): ...\n")
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("import a_tool_that_is_not_there\n")
    monkeypatch.setattr(boards, "__path__", [*boards.__path__, str(tmp_path)])
    assert set(board_names()) == {*HAS, "my-board"}
    assert find_board("my-board") == Board(**SMALL)
    assert find_board("my-board") in all_boards()
    for name in ("_build-flow", "-build-flow", "engine"):
        with pytest.raises(UsageError, match=rf"^no board {name!r}; there are "):
            find_board(name)


def test_an_error_inside_a_board_passes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_board.py").write_text("import a_tool_that_is_not_there\nBOARD = 1\n")
    monkeypatch.setattr(boards, "__path__", [*boards.__path__, str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="a_tool_that_is_not_there"):
        find_board("broken-board")


NEAR = {"kv261": "kv260", "kv260 ": "kv260", "KV260": "kv260", "pynq_z2": "pynq-z2"}


@pytest.mark.parametrize("name", [*NEAR, "", "_find", "-file", "flows", "__init__", "os"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_board(name)
    assert str(caught.value) == (
        f"no board {name!r}; there are arty-z7-20, kv260, orangecrab-85f, pynq-z2, ultra96-v2, ulx3s-85f; "
        "or give a file: ./my_board.toml" + (f"; did you mean {NEAR[name]!r}?" if name in NEAR else "")
    )


def test_a_board_that_is_too_small_is_refused_with_numbers(embedded: IntegerModel) -> None:
    board = Board(**SMALL | {"has": SMALL["has"] | {"lut": 4_000}})
    with pytest.raises(UnsupportedError, match=r"^the model does not fit my-board: .* lut, of 4000 at most 3000 "):
        config_for_board(embedded, board)


def test_a_memory_of_block_ram_is_taken_from_the_device() -> None:
    """Check that an accelerator cannot use it, and that it holds no more than its blocks."""
    board = Board(**SMALL | {"memory_bram36": 20, "memory_bytes": 20 * 4096, "most": {"bram36": 1.0, "lut": 0.5}})
    assert (board.usable("bram36"), board.usable("lut"), board.usable("dsp")) == (8, 12_144, 28)
    with pytest.raises(UsageError, match=r"memory_bytes must be at most memory_bram36 20 \* 4096, not 81921"):
        Board(**SMALL | {"memory_bram36": 20, "memory_bytes": 20 * 4096 + 1})
    with pytest.raises(UsageError, match="memory_bram36 must be at most the usable part of bram36, 21, not 22"):
        Board(**SMALL | {"memory_bram36": 22, "memory_bytes": 4096})


def test_too_small_a_rest_of_block_ram_is_refused(embedded: IntegerModel) -> None:
    board = Board(**find_board("ulx3s-85f").members() | {"memory_bram36": 70, "memory_bytes": 280 << 10})
    model = shape_model(_shape(DRAFT))
    message = (
        r"bram36, of 104 at most 8 can be used where 70 are the memory and .*; use a smaller model, or a larger board$"
    )
    with pytest.raises(UnsupportedError, match=message):
        config_for_board(model, board, context=64, slots=1)


def test_boards_need_no_amaranth_and_no_numpy() -> None:
    import subprocess
    import sys

    script = textwrap.dedent("""
        import sys
        for name in ("amaranth", "torch", "cocotb", "numpy"):
            sys.modules[name] = None
        from edgedec.boards import all_boards
        print(*(board.name for board in all_boards()))
    """)
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert process.stdout.split() == board_names(), process.stderr


def test_the_default_configuration_is_that_of_the_kv260() -> None:
    config, board = AcceleratorConfig(), find_board("kv260")
    assert (config.ports, config.port_bytes, config.clock_hz) == (board.ports, board.port_bytes, board.clock_hz)


@pytest.mark.thorough
def test_a_refusal_does_not_walk_through_the_image(bitnet: IntegerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that formulas are used, which take a second for 0.7 billion weights, and no walk over half a million runs
    of beats.
    """

    def walked(layout: TernaryLayout) -> Any:
        raise AssertionError("this takes seconds")

    monkeypatch.setattr(TernaryLayout, "_parts", walked)
    with pytest.raises(UnsupportedError, match=r"the model does not fit ulx3s-85f: .*; it fits "):
        config_for_board(bitnet, find_board("ulx3s-85f"), others=all_boards())


def test_a_configuration_must_be_accepted(embedded: IntegerModel) -> None:
    """Refuse what fits alone: a smaller one is chosen, or the smallest if none is accepted."""
    board = find_board("ulx3s-85f")
    free = config_for_board(embedded, board)
    assert free.slots > 1
    lower = config_for_board(embedded, board, accepts=lambda config: config.slots < free.slots)
    assert (lower.beat_bytes, lower.slots) == (free.beat_bytes, free.slots // 2)
    smallest = config_for_board(embedded, board, accepts=lambda config: False)
    assert (smallest.beat_bytes, smallest.slots) == (4, 1)
