"""Kernels at the ends of a pass: likeliest tokens and sums of exponentials of result rows, and moves of cache rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.runtime.gpu.kernels.cache import CacheShape
from edgedec.runtime.gpu.kernels.kernel import Count, Groups, Kernel
from edgedec.runtime.gpu.kernels.source import ShaderBuffer, ShaderOptions, assemble
from edgedec.runtime.sampling.log_sum import LOG2_E, MOST_HALF, TERMS, UNIT_BITS, log_of

__all__ = ["TopKernels", "exp_sums", "log_of_parts", "move_rows", "sum_parts", "top_k"]

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
    parts, lanes = sum_parts(size), options.lanes(256)
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


def sum_parts(size: int) -> int:
    """Return the number of parts in which workgroups add up a row of ``size`` logits."""
    return -(-size // _PART)


def exp_sums(options: ShaderOptions, *, vocab: int, k: int, size: int) -> Kernel:
    """Return (logits [r, vocab], top_logits [r, k]) -> top_sums uint32 [r, parts, 2].

    They are the sums of the weights of the first ``size`` logits of each row (``sampling/log_sum.py``): of each part the
    lower and the upper word. The first of ``top_logits`` is the largest of its row.
    """
    parts, (first, *terms) = sum_parts(size), TERMS
    return assemble(
        "exp_sums",
        options,
        buffers=(
            ShaderBuffer(name="logits"),
            ShaderBuffer(name="top_logits"),
            ShaderBuffer(name="top_sums", element="u32", access="read_write"),
        ),
        parts=(f"const TERMS = array({', '.join(f'{term}u' for term in terms)});\n", "exp_sums"),
        constants={
            **{"VOCAB": vocab, "SIZE": size, "K": k, "PARTS": parts, "PART": _PART, "LANES": options.lanes(256)},
            **{"LOG2_E": LOG2_E, "MOST_HALF": MOST_HALF, "FIRST_TERM": first, "TERM_COUNT": len(terms)},
            "UNIT_SHIFT": UNIT_BITS - 31,
        },
        groups=Groups(x=Count(constant=parts), z=Count(results=1)),
    )


def log_of_parts(largest: np.float32, words: NDArray[np.uint32]) -> float:
    """Return the log of the sum of exponentials of a row, from its largest logit and the words of its parts [2 * parts].

    It is NaN if a logit is NaN or +inf, or if all are -inf.
    """
    if not math.isfinite(largest):
        return math.nan
    return log_of(float(largest), sum([low | high << 32 for low, high in words.reshape(-1, 2).tolist()]))


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
