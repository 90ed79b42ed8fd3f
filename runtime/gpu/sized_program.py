"""The program of a layout for given numbers of rows, and the contents of its constants."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.graph.graph import FEATURES_INPUT
from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.gpu.kernels.results import sum_parts
from edgedec.runtime.gpu.kernels.source import ShaderOptions
from edgedec.runtime.gpu.layout import MOST_MOVES, ProgramLayout, Sizes
from edgedec.runtime.gpu.program import GpuBuffer, GpuProgram, Step, Tap

__all__ = ["constants", "head_layout", "lower"]


def head_layout(sizes: Sizes) -> HeadLayout:
    """Return the layout of the header of a run."""
    return HeadLayout(rows=sizes.rows, results=sizes.results, blocks=sizes.table_blocks)


def lower(
    layout: ProgramLayout,
    sizes: Sizes,
    *,
    fused: bool,
    packed_dot: bool = True,
    compact: bool = False,
    sums: bool = True,
) -> GpuProgram:
    """Return the program of a layout.

    Args:
        layout: the layout.
        sizes: numbers of rows.
        fused: True if the device's fma has one rounding.
        packed_dot: True if its compiler has ``dot4I8Packed``.
        compact: True for the form of the kernels that suits software drivers.
        sums: False to leave out the steps ``sums``, which an executor may not know.
    """
    head = head_layout(sizes)
    options = ShaderOptions(head=head, fused=fused, packed_dot=packed_dot, compact=compact)
    buffers = [GpuBuffer(name="head", nbytes=4 * head.words, kind="input", item="head")]
    for name, plan in layout.buffers.items():
        buffers.append(GpuBuffer(name=name, nbytes=4 * plan.words(sizes), kind=plan.kind, item=plan.item))
    index = {buffer.name: number for number, buffer in enumerate(buffers)}
    kernels: dict[Kernel, int] = {}
    steps = []
    for dispatch in layout.dispatches:
        if dispatch.when == "sums" and not sums:
            continue
        kernel = dispatch.build(options, sizes)
        number = kernels.setdefault(kernel, len(kernels))
        places = (0, *(index[name] for name in dispatch.buffers))
        steps.append(Step(name=dispatch.name, kernel=number, buffers=places, when=dispatch.when))
    return GpuProgram(
        rows=sizes.rows,
        results=sizes.results,
        cache_blocks=sizes.cache_blocks,
        positions=sizes.positions,
        vocab=layout.vocab,
        width=layout.width,
        top_k=layout.top_k,
        sum_parts=sum_parts(layout.ids),
        most_moves=MOST_MOVES,
        embeds_only=layout.embeds_only,
        layout=head,
        buffers=tuple(buffers),
        kernels=tuple(kernels),
        steps=tuple(steps),
        head=0,
        embeds=index["embeds"],
        moves=index["moves"],
        features=index.get(FEATURES_INPUT),
        logits=index["logits"],
        top_ids=index["top_ids"],
        top_logits=index["top_logits"],
        top_sums=index["top_sums"],
        taps={
            name: Tap(buffer=index[place.buffer], width=place.width, results=place.results)
            for name, place in layout.taps.items()
        },
    )


def constants(bundle: Bundle, layout: ProgramLayout, sizes: Sizes) -> dict[str, Callable[[], NDArray[Any]]]:
    """Return a maker of the contents of each constant, by name of its buffer."""
    return {name: partial(plan.make, bundle, sizes) for name, plan in layout.buffers.items() if plan.make is not None}
