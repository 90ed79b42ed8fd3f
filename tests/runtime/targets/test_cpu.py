"""Test the CPU target's plan of its buffers, and that passes of all sizes use them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.protocols import F32, Bytes, Limits, Pass
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._cpu import CpuTarget
from edgedec.runtime.targets._cpu_footprint import cpu_footprint
from edgedec.runtime.targets._cpu_weights import program_room

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

LIMITS = Limits(nodes=16, depth=15, positions=64)
SIZES = {"hidden_size": 64, "intermediate_size": 512, "num_attention_heads": 2, "num_key_value_heads": 2}


def footprint(folder: Path, vocab: int) -> Bytes:
    """Return the planned bytes of a random model with ``vocab`` words and values of 512 columns."""
    path = folder / str(vocab)
    write_random_bundle(path, dict(SHAPES["demo"]) | SIZES | {"num_hidden_layers": 1, "vocab_size": vocab}, "ternary")
    return cpu_footprint(Bundle.open(path), LIMITS, threads=1)


def test_values_as_wide_as_the_vocabulary_are_in_the_plan(tmp_path: Path) -> None:
    """Check this because such values were once taken for logits, and passes exceeded their plans by megabytes."""
    same, other = footprint(tmp_path, 512), footprint(tmp_path, 520)
    for item in ("activations", "workspace"):
        assert same[item] == other[item] >= 4 * LIMITS.nodes * 512


def test_logits_that_a_program_keeps_to_cap_them_are_in_the_plan(tmp_path: Path) -> None:
    config = {
        **{"model_type": "gemma2", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 32},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 1000, "sliding_window": 32},
        **{"query_pre_attn_scalar": 32, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    }
    write_random_bundle(tmp_path / "m", config, "int8")
    bundle = Bundle.open(tmp_path / "m")
    room = program_room(bundle, bundle_graph(bundle, 16, rings=True))
    assert room is not None
    assert room.results == 1000
    assert cpu_footprint(bundle, LIMITS, threads=1)["logits"] == 2 * 4 * LIMITS.nodes * 1000


def run(target: CpuTarget, rows: int) -> F32:
    """Return a copy of the logits of a pass over an empty cache, float32 [rows, vocab]."""
    count = np.arange(rows, dtype=np.int32)
    (result,) = target.submit(
        [(target.open(LIMITS), Pass(ids=count + 300 + rows, positions=count, logits=count))]
    ).result()
    return result.logits.copy()


def test_logits_of_a_pass_do_not_depend_on_passes_before_it() -> None:
    bundle = Bundle.open(demo.bundle_path())
    expected = {rows: run(_target(bundle), rows) for rows in (1, 2, 16)}
    target = _target(bundle)
    for rows in (1, 16, 2, 16, 1):
        assert run(target, rows).tobytes() == expected[rows].tobytes()


def _target(bundle: Bundle) -> CpuTarget:
    target = open_target(bundle, limits=LIMITS, threads=1)
    assert isinstance(target, CpuTarget)
    return target
