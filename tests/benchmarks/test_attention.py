"""Test that the benchmark of attention runs its nodes, and that sharing blocks changes the tables only."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.runtime.kernels.sessions.operator import usable


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.cpu.attention")


@pytest.fixture
def case(benchmark: Any) -> Any:
    return benchmark.AttentionCase(heads=4, kv_heads=2, head_dim=16, past=40, queries=2, threads=1, layers=1)


def test_the_nodes_run(benchmark: Any, case: Any) -> None:
    kernels = usable()
    if kernels is None:
        pytest.skip("the kernels' library was not built (no C++ compiler)")
    benchmark.stock(case)()
    for bits in (16, 8, 4, 32):
        benchmark.ours(case, kernels, bits)()
        benchmark.ours(replace(case, sequences=3, shared=32), kernels, bits)()
    apart = replace(case, past=benchmark.SHARED + benchmark.OWN, queries=1, sequences=2)
    figures = benchmark.measure_sequences(apart, kernels, 16, 1)
    assert figures["ms"].keys() == {"apart", "shared", "one"}


def test_tables_of_sequences_share_their_leading_blocks(case: Any) -> None:
    apart, shared = replace(case, sequences=2), replace(case, sequences=2, shared=32)
    np.testing.assert_array_equal(apart.blocks, range(6))
    np.testing.assert_array_equal(shared.blocks, [0, 1, 2, 0, 1, 5])
