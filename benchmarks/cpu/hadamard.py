"""Measure the Walsh-Hadamard transform of each code path that this processor has.

    .venv/bin/python -m benchmarks.cpu.hadamard [--rounds N] [--json]

One thread transforms 256 rows of one block, which stay in the processor's cache. "copy" is a copy of the same rows in NumPy.

JSON: {"cases": [{"code_path", "block", "block_us", "copy_us"}]}, in microseconds of CPU time for one block, the least of the
rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from edgedec.host.install_hint import install_again
from edgedec.runtime.kernels import CODE_PATHS, Kernels
from edgedec.runtime.kernels.rows.rows import hadamard
from edgedec.runtime.kernels.sessions.operator import usable

ROWS = 256
BLOCKS = (64, 256, 1024, 4096)


def least_us(run: Callable[[], Any], rounds: int) -> float:
    """Return the microseconds of CPU time of one row of ``run``, which computes ``ROWS`` rows."""
    spent = []
    for _ in range(rounds):
        began = time.thread_time()
        run()
        spent.append(time.thread_time() - began)
    return min(spent) / ROWS * 1e6


def measure_case(kernels: Kernels, code_path: str, block: int, rounds: int) -> dict[str, Any]:
    """Return the figures of one code path and block."""
    rng = np.random.default_rng(block)
    x = rng.standard_normal((ROWS, block)).astype(np.float32)
    signs = rng.choice(np.array([-1, 1], np.float32), block)
    return {
        "code_path": code_path,
        "block": block,
        "block_us": least_us(lambda: hadamard(kernels, x, signs, code_path=code_path), rounds),
        "copy_us": least_us(x.copy, rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    kernels = usable()
    if kernels is None:
        sys.exit(f"hadamard: there is no library of kernels; with a C++ compiler on the PATH, {install_again()}")
    paths = [path for path in CODE_PATHS if kernels.usable(path)]
    cases = [measure_case(kernels, path, block, args.rounds) for path in paths for block in BLOCKS]
    if args.json:
        print(json.dumps({"cases": cases}, indent=2))
        return
    print(f"least of {args.rounds} rounds, CPU time of one thread")
    for case in cases:
        print(
            f"{case['code_path']:>12} block {case['block']:>5}: {case['block_us']:8.3f} us, a copy {case['copy_us']:.3f} us"
        )


if __name__ == "__main__":
    main()
