"""Test the memory of passes on the CPU: within the plan, for any widths in any order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgedec.memory.meter import MemoryMeter
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime.kernels.sessions.operator import usable
from tests.support.make_features import FAMILIES, head_family, write_head

pytestmark = [
    pytest.mark.skipif(not MemoryMeter().available, reason="the meter needs Linux' /proc/self/smaps_rollup"),
    pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)"),
]

# bytes of Python's objects of a bundle and its graph, and of what checks a new one: an item of the planner, not of a target
HOST = 1 << 20

# script for a process of its own, because the heap that other tests leave would hide allocations
_PASSES = """
import json, sys
from pathlib import Path
import numpy as np
from edgedec import families
from edgedec.bundle.bundle import Bundle
from edgedec.memory.meter import MemoryMeter
from edgedec.runtime.kernels.weights.layout_cache import charged_folders
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.targets import open_target, target_module
path, limits, rng = Path(sys.argv[1]), Limits(nodes=64, depth=63, positions=128), np.random.default_rng(0)
usable()
families.__path__ = [*families.__path__, *sys.argv[3:]]
# They are memory of the caller, as a draft's are.
width = json.loads((path / "manifest.json").read_bytes())["config"].get("feature_size", 0)
given = rng.normal(size=(64, width)).astype(np.float32)
target_module("cpu")  # a session imports it before it begins to measure
with MemoryMeter(charged_folders(path)) as meter:
    target = open_target(Bundle.open(path), limits=limits, threads=1)
    state = target.open(limits)
    def run(n, r):
        rows = np.arange(n, dtype=np.int32)
        features = given[:n] if target.info.features else None
        work = Pass(ids=np.full(n, 13, np.int32), positions=rows, logits=rows[n - r:], features=features)
        target.submit([(state, work)]).result()
    run(64, 64)
    marks = [meter.mark()]
    for _ in range(3):
        for _ in range(80):
            n = int(rng.integers(1, 65))
            run(n, int(rng.integers(1, n + 1)))
        marks.append(meter.mark())
items = target.footprint(limits)
print(json.dumps({"marks": marks, "peak": meter.peak_bytes, "items": items, "bound": len(target._buffers._bound)}))
"""

# the same for many sequences, which fill the cache, with and without common rows
_SEQUENCES = """
import json, sys
from pathlib import Path
import numpy as np
from edgedec.bundle.bundle import Bundle
from edgedec.errors import CacheFullError
from edgedec.memory.meter import MemoryMeter
from edgedec.runtime.kernels.weights.layout_cache import charged_folders
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.targets import open_target, target_module
path, most, rng = Path(sys.argv[1]), int(sys.argv[2]), np.random.default_rng(0)
limits = Limits(nodes=16, depth=15, positions=256, cache_rows=2048, batch_rows=64)
usable()
target_module("cpu")  # a session imports it before it begins to measure
full = 0
with MemoryMeter(charged_folders(path)) as meter:
    target = open_target(Bundle.open(path), limits=limits, threads=1)
    states = [target.open(limits) for _ in range(most)]
    for _ in range(60):
        work = []
        for state in states:
            n = int(rng.integers(1, 17)) if state.length < 240 else 0
            rows = np.arange(n, dtype=np.int32)
            ids = np.full(n, 13, np.int32)
            if n:
                work.append((state, Pass(ids=ids, positions=rows + state.length, logits=rows)))
        try:
            for first in range(0, most, 4):  # an engine submits at most batch_rows rows
                target.submit(work[first : first + 4]).result()
        except CacheFullError:
            full += 1
            for number in rng.integers(0, most, 8):
                source = states[int(rng.integers(0, most))]
                try:
                    new = source.fork() if number % 2 else target.open(limits)
                except CacheFullError:  # no slot is free for a copy of recurrent states
                    new = target.open(limits)
                states[number].close()
                states[number] = new
            continue
        for state, item in work:
            state.commit(item.logits)
items = target.footprint(limits)
print(json.dumps({"peak": meter.peak_bytes, "items": items, "full": full}))
"""


def _report(script: str, path: Path, sequences: int = 1, *families: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", script, str(path), str(sequences), *map(str, families)]
    result: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return result


@pytest.mark.thorough
def test_many_sequences_stay_within_the_plan(tmp_path: Path) -> None:
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 2048}
    write_random_bundle(tmp_path / "m", dict(SHAPES["demo"]) | sizes | {"num_hidden_layers": 4}, "ternary")
    report = _report(_SEQUENCES, tmp_path / "m", 16)
    items = report["items"]
    assert report["full"], "the cache was never full"
    assert report["peak"] > items["kv"]
    assert report["peak"] <= sum(items.values()) + HOST


@pytest.mark.thorough
def test_passes_of_changing_widths_leave_no_holes(tmp_path: Path) -> None:
    """Check this because each new width once pinned blocks of the last one on the C heap, 40 MiB and more after a few
    hundred.
    """
    sizes = {"hidden_size": 768, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 8192}
    write_random_bundle(tmp_path / "m", dict(SHAPES["demo"]) | sizes | {"num_hidden_layers": 2}, "ternary")
    report = _report(_PASSES, tmp_path / "m")
    items = report["items"]
    assert report["peak"] <= sum(items.values()) + HOST
    assert report["marks"][-1] - report["marks"][0] < items["activations"] / 2
    assert report["bound"] <= 96


@pytest.mark.thorough
def test_features_are_in_the_plan(tmp_path: Path) -> None:
    config = {"feature_size": 12288, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
    with head_family():
        write_head(tmp_path / "m", "ternary", config={**config, "max_position_embeddings": 256})
    report = _report(_PASSES, tmp_path / "m", 1, FAMILIES)
    items = report["items"]
    assert items["features"] == 4 * 64 * 12288
    assert report["peak"] <= sum(items.values()) + HOST


_RECURRENT: dict[str, dict[str, Any]] = {
    "mamba2": {
        **{"hidden_size": 1024, "num_heads": 32, "head_dim": 64, "state_size": 128, "n_groups": 1, "vocab_size": 2048},
        **{"num_hidden_layers": 6, "expand": 2, "conv_kernel": 4},
    },
    "kimi_linear": {
        **{"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8},
        **{"first_k_dense_replace": 2, "linear_num_heads": 16, "linear_head_dim": 64, "vocab_size": 2048},
        "layer_types": ["linear_attention", "full_attention"],
    },
    "phi4flash": {
        **{"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8},
        **{"num_key_value_heads": 4, "sliding_window": 64, "mamba_d_state": 64, "vocab_size": 2048},
    },
}


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
@pytest.mark.parametrize("family", _RECURRENT)
def test_recurrent_states_are_in_the_plan(family: str, tmp_path: Path) -> None:
    config = {"model_type": family, **_RECURRENT[family]}
    write_random_bundle(tmp_path / "m", config, "ternary")
    report = _report(_PASSES, tmp_path / "m")
    items = report["items"]
    assert items["recurrent"] > {"mamba2": 12 << 20}.get(family, 1 << 20)
    assert items["weights"] + items["recurrent"] < report["peak"] <= sum(items.values()) + HOST


@pytest.mark.thorough
def test_many_sequences_with_recurrent_states_stay_within_the_plan(tmp_path: Path) -> None:
    """Nine sequences have a slot each, and more rows than the cache."""
    config = {
        **{"model_type": "qwen3_5_text", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4},
        **{"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "full_attention_interval": 4},
        **{"linear_num_key_heads": 8, "linear_num_value_heads": 8, "linear_key_head_dim": 64},
        **{"linear_value_head_dim": 64, "vocab_size": 2048, "max_position_embeddings": 256},
    }
    write_random_bundle(tmp_path / "m", config, "ternary")
    report = _report(_SEQUENCES, tmp_path / "m", 9)
    items = report["items"]
    assert report["full"], "the cache was never full"
    assert report["peak"] > items["kv"] + items["recurrent"]
    assert report["peak"] <= sum(items.values()) + HOST
