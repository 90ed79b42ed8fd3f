"""The use of a board's memories by a run: DRAM, its contiguous part (CMA), and the memories of the fabric."""

from __future__ import annotations

from collections.abc import Mapping

from edgedec.board import Board
from edgedec.boards import find_board
from edgedec.errors import DeviceError
from edgedec.hw.compiler.program import laid_out
from edgedec.hw.config import AcceleratorConfig
from edgedec.memory.plan import MemoryUse
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.driver.cma import Cma, read_cma, shortage
from edgedec.runtime.driver.udmabuf import make_buffers, udmabuf_bytes

__all__ = ["board_memories"]

_BRAM36_BYTES, _URAM_BYTES = 36 << 7, 288 << 7  # bytes of a block RAM of 36 kbit and of an UltraRAM of 288 kbit


def board_memories(
    config: AcceleratorConfig, sizes: Mapping[str, int], options: AcceleratorOptions, device: str
) -> tuple[MemoryUse, ...]:
    """Return the use of the memories of the board that ``options`` names.

    Args:
        config: the accelerator.
        sizes: bytes of the program's buffers, by name.
        options: the options that select the accelerator.
        device: value of ``--device``. With ``pynq`` and ``devmem`` the size of contiguous memory is what the system has
            now; otherwise it is unknown, and the usual reservation is only mentioned.
    """
    board = find_board(options.board_name)
    needed = laid_out(sizes, config.ports)[1]
    memories = [MemoryUse(name="DRAM", used_bytes=needed, has_bytes=board.memory_bytes, source="data sheet")]
    cma = _cma() if device == "pynq" else None
    if cma is not None:
        memories.append(
            MemoryUse(
                name="CMA",
                used_bytes=needed,
                has_bytes=cma.free_bytes,
                source="read from the system",
                hint=shortage(needed, cma, largest_bytes=max(sizes.values())),
            )
        )
    elif device == "devmem" and (pieces := udmabuf_bytes()):
        largest = max(sizes.values())
        memories += [
            MemoryUse(
                name=name, used_bytes=used, has_bytes=has, source="read from the system", hint=make_buffers(largest)
            )
            for name, used, has in (
                ("u-dma-buf", needed, sum(pieces)),
                ("u-dma-buf, the largest buffer", largest, max(pieces)),
            )
        ]
    elif board.link == "axi":
        # The reservation of an image can be changed, so it does not limit a plan.
        usual = "" if board.cma_bytes is None else f"; usual images reserve {board.cma_bytes >> 20} MiB"
        memories.append(
            MemoryUse(name="CMA", used_bytes=needed, has_bytes=None, source=f"known on the board only{usual}")
        )
    return (*memories, *_on_chip(config, board, options))


def _cma() -> Cma | None:
    """Return the contiguous memory of this system; None if it has none, because the plan is made elsewhere."""
    try:
        return read_cma()
    except DeviceError:
        return None


def _on_chip(config: AcceleratorConfig, board: Board, options: AcceleratorOptions) -> list[MemoryUse]:
    """Return the use of the memories on the chip.

    It is empty without the generator, and with a board bundle, whose bitstream is known to fit.
    """
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
