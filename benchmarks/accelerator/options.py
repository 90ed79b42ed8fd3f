"""Compute what the planner chooses for shapes of models, and what an option costs and gains beside the same without it.

    .venv/bin/python -m benchmarks.accelerator.options                # the tables
    .venv/bin/python -m benchmarks.accelerator.options --write-docs   # write them into docs/reports/accelerator.md

All figures are estimates: tokens per second by the cycle model, with a memory of the KV260's measured rate that never makes
anything else wait, and resources by the formulas that ``benchmarks.accelerator.resources`` compares with synthesis. The
host takes no time. It takes three seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from types import MappingProxyType

from edgedec.host.install_hint import install_extra

if find_spec("amaranth") is None:
    sys.exit(f"this benchmark needs the package amaranth; run: {install_extra('hdl')}")

from benchmarks.accelerator.speed import SCHEMES, SHAPES, chosen
from benchmarks.accelerator.speed_figures import Estimated, figures
from benchmarks.support.docs_tables import markdown_table, run_tables
from benchmarks.support.shapes import BITNET_073B, BONSAI_17B, GEMMA_2_2B
from edgedec.boards import all_boards, find_board
from edgedec.graph.graph import Graph
from edgedec.hw.blocks.resources import total
from edgedec.hw.compiler.cycles import cycles
from edgedec.hw.compiler.shapes import shape_graph, shape_model, shape_program
from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.hw.isa.instructions import Opcode, Sink
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.hw.plan.estimate import estimate

__all__ = ["TABLES", "norms_table", "rings_table", "rough_table", "shapes_table", "shared_table"]

_BOARD = find_board("kv260")
_WINDOW, _CONTEXT = 256, 4096  # positions of the windows and of the context of the table of rings
_CACHE_PARTS = ("control", "cache")  # parts that know of rings
_SLOTS = 4  # slots of the table of norms; without them the board has room for eight
_DEPTHS = (128, 1024)  # positions of the token that is written


def _speeds(graph: Graph, config: AcceleratorConfig, depths: Sequence[int]) -> list[float]:
    """Return the tokens per second of the token at each depth."""
    program = shape_program(graph, config)
    passes = (cycles(program, slots=1, committed=depth - 1, bandwidth=_BOARD.bandwidth_bytes_s) for depth in depths)
    return [config.clock_hz / one.cycles for one in passes]


def _tokens(graph: Graph, config: AcceleratorConfig) -> list[str]:
    return [f"{speed:.{2 if speed < 20 else 1}f} tokens/s" for speed in _speeds(graph, config, _DEPTHS)]


def rings_table() -> str:
    """Return the table of a model with windows, all of whose rows are kept, or those of the windows."""
    whole = shape_graph(BITNET_073B)
    states = {name: replace(state, window=_WINDOW) for name, state in whole.states.items()}
    rows = []
    for name, graph, window in (("all rows", whole, 0), ("rings", replace(whole, states=states), _WINDOW)):
        config = replace(AcceleratorConfig(), context=_CONTEXT, window=window)
        parts = estimate(config).parts
        part = total(parts[name] for name in _CACHE_PARTS)
        size = shape_program(graph, config).cache_bytes / 2**20
        speeds = (f"{speed:.1f}" for speed in _speeds(graph, config, (*_DEPTHS, _CONTEXT)))
        rows.append((name, f"{size:.{0 if size > 99 else 1}f} MiB", *speeds, f"{part.lut:,}, {part.ff:,}"))
    head = ("", "cache", "tokens/s at 128", "at 1,024", "at 4,096 positions")
    return markdown_table((*head, "LUT, FF of the control and the cache's writer"), rows)


def shapes_table() -> str:
    """Return the table of the accelerators that the KV260 gets for shapes of models, and their speeds."""
    rows = []
    for name in ("bitnet-0.73b", "bitnet-2b4t", "bonsai-1.7b", "gemma2-2b"):
        config = chosen(_BOARD, name, None)
        passes = Estimated(SHAPES[name], config, _BOARD.bandwidth_bytes_s, SCHEMES.get(name))
        speed = figures(passes, config, _BOARD.bandwidth_bytes_s)
        needs = estimate(config)
        shares, unpacked = needs.shares(_BOARD), needs.unpacked.shares(_BOARD)["lut"]
        taken = [f"{100 * shares[kind]:.0f} %" for kind in ("lut", "bram36", "uram", "dsp")]
        taken[0] += f" ({100 * unpacked:.0f} %)"
        decoded = (f"{speed['decode_tok_s'][depth]:.1f}" for depth in ("128", "1024"))
        chosen_ = (str(config.slots), "together" if config.shared else "each for itself")
        rows.append((f"`{name}`", *chosen_, *decoded, f"{speed['ttft_s']['128']:.2f} s", *taken))
    head = ("shape", "slots", "heads that share keys", "tokens/s at 128", "at 1,024 positions", "first token of 128")
    return markdown_table((*head, "LUT", "BRAM36", "URAM", "DSP"), rows)


def rough_table() -> str:
    """Return the table of the accelerators that the KV260 gets for an int8 head, and for rough ones."""
    rows = []
    for name in ("bitnet-0.73b", "bitnet-2b4t"):
        graph = shape_graph(SHAPES[name])
        vocab, hidden = SHAPES[name]["vocab_size"], SHAPES[name]["hidden_size"]
        for kind, rough in (("int8", 0), ("one plane", 1), ("two planes", 2)):
            config = config_for_board(shape_model(graph, rough_head=rough), _BOARD, others=all_boards())
            program, size = shape_program(graph, config), config.beat_bytes
            passes = [cycles(program, slots=1, committed=d - 1, bandwidth=_BOARD.bandwidth_bytes_s) for d in _DEPTHS]
            heads = [one for one in program.instructions if one.opcode == Opcode.MATRIX and one["sink"] == Sink.LOGITS]
            planes = sum(one["words"] * one["blocks"] * (one["planes"] if rough else ROWS) for one in heads) * size
            both = f"{planes / 1e6:.1f} + {vocab * (hidden + 4) / 1e6:.1f}" if rough else f"{planes / 1e6:.1f}"
            speeds = (f"{config.clock_hz / one.cycles:.1f}" for one in passes)
            read = (f"{one.beats * size / 1e6:.0f}" for one in passes)
            lut = f"{100 * estimate(config).shares(_BOARD)['lut']:.0f} %"
            rows.append((f"`{name}`, {kind}", both, *read, *speeds, str(config.slots), str(config.top_k), lut))
    head = ("shape and head", "MB of the heads in memory", "MB read at 128", "at 1,024", "tokens/s at 128", "at 1,024")
    return markdown_table((*head, "slots", "`top_k`", "LUT"), rows)


def shared_table() -> str:
    """Return the table of heads that share keys and values, each for itself and together."""
    graph = shape_graph(BONSAI_17B, schemes=SCHEMES["bonsai-1.7b"])
    together = chosen(_BOARD, "bonsai-1.7b", None)
    rows = []
    for name, config in (("a head for itself", replace(together, shared=False)), ("together", together)):
        needs = estimate(config).on(_BOARD)
        resources = ", ".join(f"{needs[kind]:,}" for kind in ("lut", "ff", "bram36"))
        rows.append((name, *_tokens(graph, config), resources))
    return markdown_table(("", "128 positions", "1,024 positions", "LUT, FF, BRAM36 of the accelerator"), rows)


def norms_table() -> str:
    """Return the table of Gemma 2's norms of rows and soft-caps, beside Gemma 1's block of the same sizes."""
    left_out = ("query_pre_attn_scalar", "sliding_window")
    plain = {key: value for key, value in GEMMA_2_2B.items() if key not in left_out} | {"model_type": "gemma"}
    rows = []
    for name, graph in (("without", shape_graph(plain)), ("with", shape_graph(GEMMA_2_2B))):
        config = config_for_board(shape_model(graph), _BOARD, others=all_boards(), slots=_SLOTS)
        needs = total(estimate(config).parts.values())
        resources = ", ".join(f"{getattr(needs, kind):,}" for kind in ("lut", "ff", "bram18", "uram", "dsp"))
        rows.append((name, *_tokens(graph, config), resources))
    head = ("", "128 positions", "1,024 positions", "LUT, FF, RAMB18, URAM, DSP of the accelerator")
    return markdown_table(head, rows)


# Name of a block of docs/reports/accelerator.md -> function of its table.
TABLES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "options shapes": shapes_table,
        "options rings": rings_table,
        "options rough": rough_table,
        "options shared": shared_table,
        "options norms": norms_table,
    }
)


if __name__ == "__main__":
    run_tables(TABLES, __doc__)
