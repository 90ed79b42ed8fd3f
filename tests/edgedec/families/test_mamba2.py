"""Test the configuration of Mamba 2."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from edgedec.errors import BundleError, UnsupportedError
from edgedec.families import build_graph, context_size
from edgedec.graph.graph import Graph, RecurrentState
from edgedec.graph.ops import SelectiveScan
from edgedec.quantize.readers.untrusted import read_object

CONFIG: dict[str, Any] = {
    "model_type": "mamba2",
    **{"hidden_size": 16, "num_heads": 4, "head_dim": 8, "state_size": 6, "n_groups": 2, "vocab_size": 24},
    **{"num_hidden_layers": 2, "expand": 2, "conv_kernel": 4},
}


def graph(**changes: Any) -> Graph:
    return build_graph({**CONFIG, **changes})


def test_states_do_not_depend_on_positions() -> None:
    model = graph()
    assert not model.states
    assert model.recurrent["layers.1.conv.state"] == RecurrentState(name="layers.1.conv.state", shape=(3, 32 + 2 * 12))
    assert model.recurrent["layers.1.scan.state"].shape == (4, 8, 6)
    assert sum(state.sequence_bytes() for state in model.recurrent.values()) == 2 * 4 * (3 * 56 + 4 * 8 * 6)
    assert context_size(CONFIG) == 1 << 20


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        ("[0.5, 2]", (0.5, 2.0)),
        ("[0.0, Infinity]", (0.0, math.inf)),
        ('[0, {"__float__": "Infinity"}]', (0.0, math.inf)),
    ],
)
def test_limits_of_the_step_are_read_in_all_spellings(
    tmp_path: Path, written: str, limits: tuple[float, float]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG)[:-1] + f', "time_step_limit": {written}}}')
    scans = [op for op in build_graph(read_object(path)).operations if isinstance(op, SelectiveScan)]
    assert {op.step_limits for op in scans} == {limits}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"head_dim": 6}, BundleError, "4 heads of 6 are not expand"),
        ({"n_groups": 3}, BundleError, "4 heads are not a multiple of n_groups 3"),
        ({"conv_kernel": 0}, BundleError, "conv_kernel must be an integer in 1..64"),
        ({"state_size": None}, BundleError, "state_size must be an integer"),
        ({"time_step_limit": [2, 1]}, BundleError, "time_step_limit must be two numbers"),
        ({"time_step_limit": [0, True]}, BundleError, "time_step_limit must be two numbers"),
        ({"time_step_limit": [math.nan, 1]}, BundleError, "time_step_limit must be two numbers"),
        ({"time_step_limit": 3}, BundleError, "time_step_limit must be two numbers"),
        ({"time_step_limit": [0, {"__float__": "NaN"}]}, BundleError, "time_step_limit must be two numbers"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act 'gelu' is not supported"),
        ({"rms_norm": False}, UnsupportedError, "rms_norm False is not supported"),
    ],
)
def test_unsupported_settings_are_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        graph(**changes)
