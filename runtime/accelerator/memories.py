"""What a run takes of a board's memories: DRAM, of it the contiguous part, and the memories of the fabric."""

from __future__ import annotations

from collections.abc import Mapping

from edgedec.board import Board
from edgedec.boards import find_board
from edgedec.errors import DeviceError
from edgedec.hw.compiler.program import laid_out
from edgedec.hw.config import AcceleratorConfig
from edgedec.memory import MemoryUse
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.driver.cma import Cma, read_cma, shortage

__all__ = ["board_memories"]

_BRAM36_BYTES, _URAM_BYTES = 36 << 7, 288 << 7  # of one: 36 kbit, 288 kbit


def board_memories(
    config: AcceleratorConfig, sizes: Mapping[str, int], options: AcceleratorOptions, device: str
) -> tuple[MemoryUse, ...]:
    """Of the board that ``options`` names.

    Args:
        sizes: of the program's buffers, in bytes.
        device: on ``pynq`` the contiguous memory is what the system has free now, else what the board's image sets aside.
    """
    board = find_board(options.board_name)
    needed = laid_out(sizes, config.ports)[1]
    found = [MemoryUse(name="DRAM", used_bytes=needed, has_bytes=board.memory_bytes, source="data sheet")]
    cma = _cma() if device == "pynq" else None
    if cma is not None:
        found.append(
            MemoryUse(
                name="CMA",
                used_bytes=needed,
                has_bytes=cma.free_bytes,
                source="read from the system",
                hint=shortage(needed, cma),
            )
        )
    elif board.link == "axi":
        # What an image sets aside can be changed, so it refuses nothing here.
        aside = "" if board.cma_bytes is None else f"; a usual image sets aside {board.cma_bytes >> 20} MiB"
        found.append(MemoryUse(name="CMA", used_bytes=needed, has_bytes=None, source=f"only the board can tell{aside}"))
    return (*found, *_on_chip(config, board, options))


def _cma() -> Cma | None:
    """None where a plan is made beside the board."""
    try:
        return read_cma()
    except DeviceError:
        return None


def _on_chip(config: AcceleratorConfig, board: Board, options: AcceleratorOptions) -> list[MemoryUse]:
    """Where the generator is installed; a bitstream that was built has shown that it fits."""
    if options.board_bundle is not None or options.generator is None:
        return []
    needs = options.generator.needs(config, board)
    return [
        MemoryUse(
            name=name.upper().removesuffix("36"),
            used_bytes=needs[name] * size,
            has_bytes=board.has[name] * size,
            source="estimated; data sheet",
            hint="give --configuration fewer slots or a narrower beat_bytes",
        )
        for name, size in (("bram36", _BRAM36_BYTES), ("uram", _URAM_BYTES))
        if needs[name] or board.has[name]
    ]
