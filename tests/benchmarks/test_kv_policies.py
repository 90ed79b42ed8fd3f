"""Test the benchmark of policies with few questions and a short context."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.calibrated_bundle import weights_sha256, write_calibrated
from edgedec.errors import UsageError
from edgedec.families import build_graph
from edgedec.kv.policies.double_sparsity import DoubleSparsityPolicy
from edgedec.kv.policies.duo import DuoPolicy
from edgedec.runtime.kernels.sessions.operator import usable
from tests.support.make_policies import selection_of

kv_policies = importlib.import_module("benchmarks.memory.kv_policies")

HEADS = {f"layers.{layer}.kv": 4 for layer in range(4)}
STREAMING = {"layers.0.kv": (0, 1, 2, 3), "layers.2.kv": (1, 3)}


def policy(bundle: Bundle) -> DuoPolicy:
    return DuoPolicy(weights_sha256=weights_sha256(bundle), sinks=4, window=16, streaming=STREAMING)


def test_a_random_choice_has_as_many_streaming_heads() -> None:
    chosen = DuoPolicy(weights_sha256="", sinks=4, window=16, streaming=STREAMING)
    drawn = [kv_policies.drawn(chosen, HEADS, seed) for seed in range(3)]
    assert [sum(map(len, one.streaming.values())) for one in drawn] == [6, 6, 6]
    assert len({json.dumps(one.to_json()) for one in drawn}) == 3
    assert drawn[0] == kv_policies.drawn(chosen, HEADS, 0)


def test_a_bundle_without_a_policy_or_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no policy; make one with: edgedec calibrate-kv -m demo --kind KIND"):
        kv_policies.calibrated(demo.bundle_path())
    other = Bundle.open(demo.bundle_path("demo-int8"))
    write_calibrated(other, tmp_path / "duo", policy(other))
    with pytest.raises(UsageError, match="was made from another model than demo"):
        kv_policies.calibrated(tmp_path / "duo")


@pytest.mark.thorough
@pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")
def test_streaming_heads_take_less_and_forget(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundle = Bundle.open(demo.bundle_path())
    write_calibrated(bundle, tmp_path / "duo", policy(bundle))
    selections = {name: selection_of(state, keys=64) for name, state in build_graph(bundle.config).states.items()}
    selecting = DoubleSparsityPolicy(weights_sha256=weights_sha256(bundle), selections=selections)
    write_calibrated(bundle, tmp_path / "selecting", selecting)
    words = [
        "-m",
        str(tmp_path / "selecting"),
        "--kinds",
        "duo",
        "double-sparsity",
        "--ctx-size",
        "512",
        "--history",
        "0",
        "--questions",
        "8",
        "--random",
        "1",
        "--windows",
        "1",
        "-t",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", ["kv_policies.py", "-m", str(tmp_path / "duo"), *words, "--json"])
    kv_policies.main()
    runs = {run["policy"]: run for run in json.loads(capsys.readouterr().out)["runs"]}
    assert [run["streaming_heads"] for run in runs.values()] == [0, 6, 6, 16, 0, 0]
    row, ring = 2 * 2 * 96, 16 + 16 * -(-(15 + 64 + 15) // 16)  # bytes of a head's row, rows of a ring
    kept = [row * (512 * (16 - count) + ring * count) for count in (0, 6, 6, 16)]
    kept += [row * 512 * 16 + 4 * 512 * 16 + 64 + 16 * 64 * 8] * 2  # labels, the counts, and the last choices
    assert [run["kv_bytes"] for run in runs.values()] == kept
    full, streaming = runs["full"], runs["streaming"]
    for name in ("double-sparsity", "double-sparsity, random 0"):
        assert 64 / 512 <= runs[name]["keys_share"] <= 64 / 460
        assert runs[name]["read_bytes"] < row * 16 * 512 / 4
    assert full["recall"]["0"] >= 0.75
    assert streaming["recall"]["0"] <= 0.5
    assert streaming["perplexity"] > full["perplexity"]
