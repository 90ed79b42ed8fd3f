"""The memory of a program on a GPU, by item, computed from shapes before anything is loaded."""

from __future__ import annotations

from edgedec.bundle.bundle import Bundle
from edgedec.runtime.gpu.device import chosen_adapter
from edgedec.runtime.gpu.driver import known_cost
from edgedec.runtime.gpu.executor import UPLOAD_BYTES
from edgedec.runtime.gpu.kernels.results import sum_parts
from edgedec.runtime.gpu.layout import ProgramLayout, Sizes, sizes_of
from edgedec.runtime.gpu.lowering import bundle_layout
from edgedec.runtime.gpu.program import TOP_K
from edgedec.runtime.gpu.sized_program import head_layout, lower
from edgedec.runtime.protocols import Bytes, Limits

__all__ = ["gpu_footprint"]

_SMALL = Sizes(rows=1, results=1, positions=16, cache_blocks=1, table_blocks=1)
_PACKING = 12  # peak of packing a matrix, in units of its packed bytes: codes as bytes, their parts and their order


def gpu_footprint(
    bundle: Bundle, limits: Limits, *, kv_bits: int, taps: tuple[str, ...] = (), result_rows: int | None = None
) -> Bytes:
    """Return the charged bytes by item.

    The buffers are those of the program, to the byte. ``programs`` are the driver's objects, as measured on this adapter.
    Where the adapter is software, or shares the host's memory, all of it is memory of this machine.
    """
    adapter = chosen_adapter()
    layout = bundle_layout(bundle, kv_bits, taps=taps, binding_bytes=adapter.binding_bytes)
    sizes = sizes_of(limits, result_rows)
    top = max(layout.vocab, 2 * (TOP_K + sum_parts(layout.ids)))
    tap_words = sum(place.width * (sizes.results if place.results else sizes.rows) for place in layout.taps.values())
    readback = 4 * (sizes.results * top + tap_words)
    largest = max((4 * plan.words(sizes) for plan in layout.buffers.values() if plan.kind == "constant"), default=0)
    return {
        **layout.item_bytes(sizes),
        "head": 2 * 4 * head_layout(sizes).words,  # the host's and the device's
        # The buffer that is mapped, its copy, and rows in which the likeliest tokens are filled in.
        "readback": 2 * readback + 4 * sizes.results * layout.vocab,
        "programs": known_cost(adapter).pipeline_bytes * _pipelines(bundle, layout, kv_bits),
        "load_transient": 2 * UPLOAD_BYTES + _PACKING * largest,
    }


def _pipelines(bundle: Bundle, layout: ProgramLayout, kv_bits: int) -> int:
    """Return the number of different kernels of a program, which its limits do not change."""
    key = ("gpu_pipelines", kv_bits, layout.embeds_only, tuple(layout.taps))
    if key not in bundle.derived:
        bundle.derived[key] = len(lower(layout, _SMALL, fused=True).kernels)
    count: int = bundle.derived[key]
    return count
