"""Test the CPU target's buffers: a failure while they grow must not change later passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle import Bundle
from edgedec.runtime.kernels.operator import usable
from edgedec.runtime.kernels.session import KernelSession
from edgedec.runtime.protocols import F32, Limits, Pass
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._cpu import CpuTarget

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

LIMITS = Limits(nodes=16, depth=15, positions=64)


def run(target: CpuTarget, rows: int) -> F32:
    """Return a copy of the logits of a pass over an empty cache, float32 [rows, vocab]."""
    count = np.arange(rows, dtype=np.int32)
    (result,) = target.submit(
        [(target.open(LIMITS), Pass(ids=count + 300 + rows, positions=count, logits=count))]
    ).result()
    return result.logits.copy()


def without_memory_for(vocab: int) -> Callable[..., Any]:
    """Return a ``np.empty`` that has no memory for arrays of ``vocab`` columns."""
    empty = np.empty

    def fail(shape: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(shape, tuple) and shape[-1] == vocab:
            raise MemoryError
        return empty(shape, *arguments, **options)

    return fail


def interrupted(session: KernelSession, *arguments: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("failure", ["no memory for the logits", "an interruption before the buffers are bound"])
@pytest.mark.parametrize("first", [0, 2])
def test_passes_after_a_failed_growth_are_right(failure: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.open(demo.bundle_path())
    expected = {rows: run(_target(bundle), rows) for rows in (1, 2, 8)}
    target = _target(bundle)
    if first:
        assert run(target, first).tobytes() == expected[first].tobytes()
    with monkeypatch.context() as patch:
        if failure.startswith("no memory"):
            patch.setattr("edgedec.runtime.targets._cpu.np.empty", without_memory_for(target.info.vocab))
        else:
            patch.setattr(KernelSession, "bind", interrupted)
        with pytest.raises((MemoryError, KeyboardInterrupt)):
            run(target, 8)
    for rows in (1, 2, 8, 1):
        assert run(target, rows).tobytes() == expected[rows].tobytes()


def _target(bundle: Bundle) -> CpuTarget:
    target = open_target(bundle, limits=LIMITS, threads=1)
    assert isinstance(target, CpuTarget)
    return target
