"""Compare passes of programs and of fused nodes with passes of one node for each operation, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.onnx.emitter import Emitter
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import Limits, Pass, Target
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._cpu import CpuTarget
from edgedec.runtime.visibility import tree

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

# Matrices are large enough to be divided among threads; no width is a multiple of 64.
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 264,
    "intermediate_size": 584,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 44,
    "vocab_size": 331,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
METHODS: dict[str, dict[str, Any]] = {
    "int8": {"method": "int8"},
    "ternary": {"method": "ternary"},
    "planes": {"method": "ternary", "planes": 2, "group_size": 64},
}
LIMITS = Limits(nodes=40, depth=16, positions=96)
TAPS = ("layers.1.out", "final_norm")


def passes(target: Target) -> list[NDArray[np.float32]]:
    """Return the logits and taps of a prompt, a tree, single rows, and a pass without logits."""
    results: list[NDArray[np.float32]] = []

    def run(count: int, **options: Any) -> None:
        positions = options.pop("positions", np.arange(state.length, state.length + count, dtype=np.int32))
        work = Pass(ids=np.arange(5, 5 + count, dtype=np.int32), positions=positions, taps=TAPS, **options)
        (result,) = target.submit([(state, work)]).result()
        results.extend(np.array(part) for part in (result.logits, *(result.taps[name] for name in TAPS)))

    state = target.open(LIMITS)
    run(40)
    state.commit(np.arange(40, dtype=np.int32))
    depths = np.array([0, 1, 1, 2, 2], np.int32)
    run(
        5,
        positions=40 + depths,
        visible=tree(np.array([-1, 0, 0, 1, 2], np.int32)),
        logits=np.arange(5, dtype=np.int32),
    )
    state.commit(np.array([0, 2, 4], np.int32))
    for _ in range(3):
        run(1)
        state.commit(np.zeros(1, np.int32))
    run(2, logits=np.zeros(0, np.int32))
    run(3, logits=np.array([2, 0], np.int32))
    return results


@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize("program", [True, False], ids=["program", "onnxruntime"])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_fused_nodes_have_the_bits_of_their_operations(
    method: str, threads: int, program: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_random_bundle(tmp_path / "bundle", CONFIG, **METHODS[method])
    bundle = Bundle.open(tmp_path / "bundle")
    monkeypatch.setenv("EDGEDEC_FUSED", "0")
    expected = passes(open_target(bundle, limits=LIMITS, threads=1, taps=TAPS))
    monkeypatch.delenv("EDGEDEC_FUSED")
    if not program:
        monkeypatch.setattr(Emitter, "program", lambda self: None)
    target = open_target(bundle, limits=LIMITS, threads=threads, taps=TAPS)
    assert isinstance(target, CpuTarget)
    assert target.session.direct == program
    for part, right in zip(passes(target), expected, strict=True):
        assert part.shape == right.shape
        assert part.tobytes() == right.tobytes()


def test_another_value_of_the_variable_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_random_bundle(tmp_path / "bundle", CONFIG, method="int8")
    monkeypatch.setenv("EDGEDEC_FUSED", "never")
    with pytest.raises(UsageError, match="EDGEDEC_FUSED"):
        open_target(Bundle.open(tmp_path / "bundle"), limits=LIMITS, threads=1)
