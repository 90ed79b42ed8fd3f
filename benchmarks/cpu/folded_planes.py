"""Compare ternary planes with tied scales, folded to codes of 4 or 5 bits, with the same planes one after the other.

    .venv/bin/python -m benchmarks.cpu.folded_planes [--rounds N] [--json]

One thread multiplies matrices [1536, 1536] in turns by both kernels: one matrix, which stays in the processor's cache, and
as many as take 128 MiB, which are read from memory. Both kernels get the same planes; without folding, each plane has scales
of its own. Ratios above 1 mean that folding is faster.

The time of a call that multiplies no rows is subtracted, because it is that of Python and of arranging the activations.

JSON: {"code_path", "cases": [{"planes", "group_size", "tokens", "memory", "bytes_ratio", "ratio", "folded_us",
"planes_us"}]}, in microseconds of CPU time for one matrix, medians over the rounds. "bytes_ratio" is what the ratio would be
if the time were that of reading the weights.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.host.install_hint import install_again
from edgedec.onnx.grid_layout import TILE_ROWS, grid_layout
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.products.grid import grid_matmul, pack_grid
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.schemes import TernaryScheme, TernaryWeight

SHAPE = (1536, 1536)
MEMORY_BYTES = 128 << 20  # more than the caches of the processors that are measured
CALLS = 40  # products of the one matrix in a round


def seconds_of(run: Callable[[int, range], None], count: int) -> float:
    """Return the seconds of CPU time of one product; ``run(i, tiles)`` multiplies tiles of matrix i of ``count``."""
    calls, spent = max(count, CALLS), []
    for tiles in (range(SHAPE[0] // TILE_ROWS), range(0)):
        began = time.thread_time()
        for i in range(calls):
            run(i % count, tiles)
        spent.append((time.thread_time() - began) / calls)
    return spent[0] - spent[1]


def layouts(kernels: Kernels, tied: TernaryScheme, free: TernaryScheme) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return random planes in the layouts of both kernels: folded, and plane after plane with the same scales."""
    rng = np.random.default_rng(0)
    stored = tied.pack(rng.integers(-1, 2, (tied.planes, *SHAPE)).astype(np.int8))
    scale = rng.uniform(0.5, 1, tied.parts(SHAPE)["scale"].shape).astype(np.float32)
    weight = tied.open("matrix", SHAPE, {"codes": stored, "scale": scale})
    assert isinstance(weight, TernaryWeight)
    folded = pack_grid("matrix", tied, {"codes": stored, "scale": scale}, SHAPE)
    return folded, kernels.pack(stored, weight.plane_scales(), SHAPE, free)


def measure_case(kernels: Kernels, tied: TernaryScheme, tokens: int, memory: bool, rounds: int) -> dict[str, Any]:
    """Return the figures of one kind of matrix and number of tokens; ``memory``: read from memory, not from the cache."""
    free, layout = replace(tied, tied=False), grid_layout(tied)
    assert layout is not None
    folded, planes = layouts(kernels, tied, free)
    count = MEMORY_BYTES // folded.nbytes if memory else 1
    folded_copies = [folded.copy() for _ in range(count)]
    plane_copies = [planes.copy() for _ in range(count)]
    x = np.random.default_rng(1).integers(-127, 128, (tokens, SHAPE[1])).astype(np.int8)
    ones, out = np.ones(tokens, np.float32), np.empty((tokens, SHAPE[0]), np.float32)

    def run_folded(i: int, tiles: range) -> None:
        grid_matmul(kernels, x, ones, folded_copies[i], SHAPE[0], layout, tiles=tiles, out=out)

    def run_planes(i: int, tiles: range) -> None:
        kernels.matmul(x, ones, plane_copies[i], None, SHAPE[0], free, tiles=tiles, out=out)

    samples = [(seconds_of(run_folded, count), seconds_of(run_planes, count)) for _ in range(rounds)]
    ours, theirs = (median(column) for column in zip(*samples, strict=True))
    return {
        "planes": tied.planes,
        "group_size": tied.group_size,
        "tokens": tokens,
        "memory": memory,
        "bytes_ratio": planes.nbytes / folded.nbytes,
        "ratio": theirs / ours,
        "folded_us": ours * 1e6,
        "planes_us": theirs * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    kernels = usable()
    if kernels is None:
        sys.exit(f"folded_planes: there is no library of kernels; with a C++ compiler on the PATH, {install_again()}")
    cases = [
        measure_case(
            kernels, TernaryScheme(planes=planes, group_size=group_size, tied=True), tokens, memory, args.rounds
        )
        for planes in (2, 3)
        for group_size in (64, 128)
        for tokens in (1, 8)
        for memory in (False, True)
    ]
    if args.json:
        print(json.dumps({"code_path": kernels.code_path, "cases": cases}, indent=2))
        return
    print(f"kernels {kernels.code_path}, medians of {args.rounds} rounds, CPU time of one thread")
    for case in cases:
        place = "memory" if case["memory"] else "cache"
        print(
            f"{case['planes']} planes, groups of {case['group_size']:>3}, {case['tokens']} tokens, {place:<6} "
            f"folded {case['folded_us']:6.0f} us, planes {case['planes_us']:6.0f} us: {case['ratio']:.2f} "
            f"(bytes {case['bytes_ratio']:.2f})"
        )


if __name__ == "__main__":
    main()
