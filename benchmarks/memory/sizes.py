"""Write the sizes that the code says into the pages: of the embedded models, of drafters, and of the boards.

    .venv/bin/python -m benchmarks.memory.sizes                # the tables
    .venv/bin/python -m benchmarks.memory.sizes --write-docs   # write them into docs/

Nothing is measured and nothing estimated: the figures are those of the checkpoints in ``edgedec/demo``, of the drafters'
``footprint``, which a plan charges, and of the files in ``boards``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from benchmarks.support.docs_tables import markdown_table, run_tables
from edgedec import demo
from edgedec.board import Board
from edgedec.boards import all_boards
from edgedec.memory.byte_sizes import format_bytes
from edgedec.plugins import load
from edgedec.quantize.methods.native import NotTernaryError, find_ternary
from edgedec.quantize.readers import open_checkpoint
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import Limits

__all__ = ["TABLES", "boards_table", "drafters_table", "models_table"]

_MODELS = MappingProxyType({"demo": demo.TARGET, "demo-draft": demo.DRAFT, "demo-hybrid": demo.HYBRID})
_DRAFTERS = ("ngram", "copy", "stand", "trigram", "auto")  # drafters without a draft model
_CONTEXT = 2048
_PASS_ROWS = 32  # rows of the largest pass, by default
# Layout of the files of a checkpoint in edgedec/demo.
_LAYOUTS = MappingProxyType({True: "BitNet", False: "floats"})


def _sizes(folder: Path) -> tuple[int, int, int]:
    """Return the weights of a checkpoint, how many of them are ternary, and the bytes of its files."""
    checkpoint, ternary = open_checkpoint(folder), 0
    for name, info in checkpoint.tensors.items():
        if len(info.shape) == 2 and ".layers." in name:
            try:
                find_ternary(checkpoint.load(name), name)
            except NotTernaryError:
                continue
            ternary += math.prod(info.shape)
    count = sum(math.prod(info.shape) for info in checkpoint.tensors.values())
    return count, ternary, sum(file.stat().st_size for file in folder.iterdir())


def models_table() -> str:
    """Return the table of the embedded models: shapes, weights and files."""
    configs = [open_checkpoint(folder).config for folder in _MODELS.values()]
    sizes = [_sizes(folder) for folder in _MODELS.values()]
    shape = ("hidden_size", "intermediate_size", "num_hidden_layers")
    rows = [
        ("hidden, intermediate, layers", *(", ".join(str(config[key]) for key in shape) for config in configs)),
        ("attention: heads, key heads, head_dim", *map(_heads, configs)),
        ("parameters", *(f"{count:,}" for count, _, _ in sizes)),
        ("of them ternary", *(f"{ternary:,}" for _, ternary, _ in sizes)),
        ("files", *(f"{_LAYOUTS[ternary > 0]}, {nbytes / 1e6:.1f} MB" for _, ternary, nbytes in sizes)),
    ]
    return markdown_table(("", *(f"`-m {name}`" for name in _MODELS)), rows)


def _heads(config: Mapping[str, object]) -> str:
    return ", ".join(str(config[key]) for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))


def drafters_table() -> str:
    """Return the table of the bytes that a plan charges for each drafter."""
    limits = Limits(nodes=_PASS_ROWS, depth=SpecConfig().draft_max, positions=_CONTEXT)
    rows = []
    for name in _DRAFTERS:
        nbytes = sum(load("edgedec.runtime.drafters", name).create().footprint(limits).values())
        rows.append((f"`{name}`", f"{nbytes / 2**10:.0f} KiB" if nbytes < 2**20 else f"{nbytes / 2**20:.1f} MiB"))
    return markdown_table(("drafter", f"memory at a context of {_CONTEXT:,} tokens"), rows)


def boards_table() -> str:
    """Return the table of the boards, those with the largest fabric first, and after them those without a processor."""
    boards = sorted(all_boards(), key=lambda board: (board.link != "axi", -board.has["lut"], board.name))
    return markdown_table(
        ("name", "part", "LUT / BRAM36 / URAM / DSP", "memory", "reads, GB/s", "host"),
        [_row(board) for board in boards],
    )


def _row(board: Board) -> tuple[str, ...]:
    has = {kind: f"{board.has[kind]:,}" for kind in ("lut", "bram36", "uram", "dsp")}
    if board.family == "ecp5":
        has["lut"] += " (LUT4)"
    rates = [(board.memory_measured_bytes_s, "measured"), (board.memory_peak_bytes_s, "peak")]
    reads = ", ".join(f"{rate / 1e9:.2f} {kind}" for rate, kind in rates if rate)
    host = "a computer, by UART" if board.link == "uart" else "no PYNQ image of its own"
    return (
        f"`{board.name}`",
        board.part,
        " / ".join(has.values()),
        f"{format_bytes(board.memory_bytes)} {board.memory_kind}",
        reads,
        f"PYNQ {board.pynq}" if board.pynq else host,
    )


# Name of a block of the pages -> function of its table.
TABLES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {"sizes models": models_table, "sizes drafters": drafters_table, "sizes boards": boards_table}
)


if __name__ == "__main__":
    run_tables(TABLES, __doc__)
