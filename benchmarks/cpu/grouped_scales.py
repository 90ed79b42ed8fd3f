"""Compare ternary matrices with a scale for each group of columns with those of one scale for the whole matrix.

    .venv/bin/python -m benchmarks.cpu.grouped_scales [--rounds N] [--json]

One thread multiplies matrices [1536, 1536] with the same trits in turns: one matrix, which stays in the processor's cache,
and as many as take 128 MiB, which are read from memory. They lie as the matrices of a model do: one after the other, at
multiples of 64 bytes, in huge pages if the system gives them. Other places change the ratios by up to 0.1. Ratios above 1
mean that groups take longer. The goal is at most 1.1 for groups of 128 with float16 scales, those of Ternary-Bonsai.

JSON: {"code_path", "cases": [{"group_size", "half_scales", "tokens", "memory", "bytes_ratio", "ratio", "grouped_us",
"single_us"}]}, in microseconds of CPU time for one matrix, medians over the rounds. "bytes_ratio" is what the ratio would be
if the time were that of reading the weights.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cpu.folded_planes import MEMORY_BYTES, SHAPE, seconds_of
from edgedec.host.install_hint import install_again
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.kernels.weights.huge_pages import anonymous
from edgedec.schemes import TernaryScheme

GROUPS, TOKENS = (64, 128), (1, 8)
GOAL = {128: 1.1}


def _layout(kernels: Kernels, scheme: TernaryScheme) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Return the kernels' layout of a random matrix, whose trits are the same for all schemes, and its stored scales."""
    rng = np.random.default_rng(0)
    stored = scheme.pack(rng.integers(-1, 2, (1, *SHAPE)).astype(np.int8))
    scale = rng.uniform(0.5, 1, scheme.parts(SHAPE)["scale"].shape).astype(scheme.scale_dtype)
    return kernels.pack(stored, scale, SHAPE, scheme), scale


def measure_case(kernels: Kernels, grouped: TernaryScheme, tokens: int, memory: bool, rounds: int) -> dict[str, Any]:
    """Return the figures of a scheme; ``memory``: matrices are read from memory, not from the cache."""
    x = np.random.default_rng(1).integers(-127, 128, (tokens, SHAPE[1])).astype(np.int8)
    ones, out = np.ones(tokens, np.float32), np.empty((tokens, SHAPE[0]), np.float32)
    single = TernaryScheme()

    def runner(scheme: TernaryScheme) -> tuple[Callable[[int, range], None], int, int]:
        codes, scales = _layout(kernels, scheme)
        count = MEMORY_BYTES // codes.nbytes if memory else 1
        copies = anonymous(count * codes.nbytes).reshape(count, -1)
        copies[:] = codes

        def run(i: int, tiles: range) -> None:
            kernels.matmul(x, ones, copies[i], scales, SHAPE[0], scheme, tiles=tiles, out=out)

        return run, count, codes.nbytes

    ours, theirs = runner(grouped), runner(single)
    samples = [(seconds_of(*ours[:2]), seconds_of(*theirs[:2])) for _ in range(rounds)]
    grouped_s, single_s = (median(column) for column in zip(*samples, strict=True))
    return {
        "group_size": grouped.group_size,
        "half_scales": grouped.half_scales,
        "tokens": tokens,
        "memory": memory,
        "bytes_ratio": ours[2] / theirs[2],
        "ratio": grouped_s / single_s,
        "grouped_us": grouped_s * 1e6,
        "single_us": single_s * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    kernels = usable()
    if kernels is None:
        sys.exit(f"grouped_scales: there is no library of kernels; with a C++ compiler on the PATH, {install_again()}")
    cases = [
        measure_case(kernels, TernaryScheme(group_size=group_size, half_scales=half), tokens, memory, args.rounds)
        for group_size in GROUPS
        for half in (False, True)
        for tokens in TOKENS
        for memory in (False, True)
    ]
    if args.json:
        print(json.dumps({"code_path": kernels.code_path, "cases": cases}, indent=2))
        return
    print(f"kernels {kernels.code_path}, medians of {args.rounds} rounds, CPU time of one thread")
    for case in cases:
        place = "memory" if case["memory"] else "cache"
        goal = GOAL.get(case["group_size"]) if case["half_scales"] else None
        verdict = "" if goal is None else f", {'MISSES ' if case['ratio'] > goal else ''}<= {goal:g}"
        scales = "float16" if case["half_scales"] else "float32"
        print(
            f"groups of {case['group_size']:>3}, {scales}, {case['tokens']} tokens, {place:<6} "
            f"{case['grouped_us']:6.0f} us, "
            f"one scale {case['single_us']:6.0f} us: {case['ratio']:.2f} (bytes {case['bytes_ratio']:.2f}){verdict}"
        )


if __name__ == "__main__":
    main()
