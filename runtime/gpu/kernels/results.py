"""Kernels at the ends of a pass: the likeliest tokens of each result row, and moves of cache rows."""

from __future__ import annotations

from typing import NamedTuple

from edgedec.errors import EdgedecError
from edgedec.runtime.gpu.kernels.cache import CacheShape
from edgedec.runtime.gpu.kernels.kernel import Count, Groups, Kernel
from edgedec.runtime.gpu.kernels.source import ShaderBuffer, ShaderOptions, assemble

__all__ = ["TopKernels", "move_rows", "top_k"]

_PART = 4096  # logits of a workgroup


class TopKernels(NamedTuple):
    """The kernels of a selection, in the order of their dispatches, and the memory between them.

    Members:
        parts: logits -> found.
        merged: found -> (top_ids, top_logits) [r, k].
        scratch: 32-bit words of ``found``.
    """

    parts: Kernel
    merged: Kernel
    scratch: int


def top_k(options: ShaderOptions, *, vocab: int, k: int, size: int) -> TopKernels:
    """Return the kernels for the k largest of the first ``size`` logits of each row [r, vocab], in descending order.

    Raises:
        EdgedecError: there are fewer logits than k.
    """
    if not 1 <= k <= size <= vocab:
        raise EdgedecError(f"cannot select {k} of {size} of {vocab} logits")
    parts, lanes = -(-size // _PART), options.lanes(256)
    found = ShaderBuffer(name="found", element="u32", access="read_write")
    first = assemble(
        "top_k_parts",
        options,
        buffers=(ShaderBuffer(name="logits", element="u32"), found),
        parts=("top_k", "top_k_logits"),
        constants={"VOCAB": vocab, "SIZE": size, "K": k, "PARTS": parts, "PART": _PART, "LANES": lanes},
        groups=Groups(x=Count(constant=parts), z=Count(results=1)),
    )
    second = assemble(
        "top_k_merged",
        options,
        buffers=(
            ShaderBuffer(name="found", element="u32"),
            ShaderBuffer(name="top_ids", element="u32", access="read_write"),
            ShaderBuffer(name="top_logits", element="u32", access="read_write"),
        ),
        parts=("top_k", "top_k_found"),
        constants={"K": k, "PARTS": parts, "PART": parts * k, "LANES": lanes},
        groups=Groups(x=Count(constant=1), z=Count(results=1)),
    )
    return TopKernels(parts=first, merged=second, scratch=options.head.results * parts * k * 2)


def move_rows(options: ShaderOptions, *, cache: CacheShape) -> Kernel:
    """Return moves -> cache: copy slots one after another.

    ``moves`` are uint32: their number, then for each the slot that is copied and the one that it is copied to, where a slot
    is ``16 * block + number in the block``.
    """
    return assemble(
        "move_rows",
        options,
        buffers=(
            ShaderBuffer(name="moves", element="u32"),
            ShaderBuffer(name="cache", element="u32", access="read_write"),
        ),
        parts=("half", "cache", "move_rows"),
        constants=cache.constants(),
        groups=Groups(x=Count(constant=cache.kv_heads)),
    )
