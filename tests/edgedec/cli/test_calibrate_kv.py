"""Test ``edgedec calibrate-kv`` at the terminal, with torch and without."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from edgedec.host.install_hint import install_extra
from edgedec.kv.policy import KV_POLICY
from tests.edgedec.cli.conftest import Edgedec

SHORT = ("--steps", "2", "--window", "9", "--sinks", "2", "-t", "1")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="pip install -e '.[train]'")


def test_without_torch_the_command_to_install_it_is_named(
    edgedec: Edgedec, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    outcome = edgedec("calibrate-kv", "-m", bundle, "-o", "out")
    assert (outcome.code, outcome.stdout) == (3, "")
    assert outcome.stderr == f"edgedec: edgedec calibrate-kv needs torch; run: {install_extra('train')}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kind", "dou"), "--kind must be one of duo, double-sparsity, nosa, shadowkv, not 'dou'"),
        (
            ("--share", "0.5", "--threshold", "0.5"),
            "--share and --threshold both choose the heads; leave one of them out",
        ),
        (("--keys", "9"), "--keys is for --kind double-sparsity or nosa or shadowkv, not duo; leave it out"),
        (("--kind", "nosa", "--rank", "4"), "--rank is for --kind shadowkv, not nosa; leave it out"),
        (("--kind", "nosa", "--window", "9"), "--window is for --kind duo, not nosa; leave it out"),
        (("--kind", "double-sparsity", "--kept", "9"), "--kept is for --kind nosa, not double-sparsity; leave it out"),
    ],
)
def test_wrong_options_are_refused(edgedec: Edgedec, bundle: Path, words: tuple[str, ...], message: str) -> None:
    outcome = edgedec("calibrate-kv", "-m", bundle, "-o", "out", *words)
    assert outcome.code == 2
    assert message in outcome.stderr


@needs_torch
def test_a_bundle_is_calibrated_inspected_planned_and_run(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("calibrate-kv", "-m", bundle, "-o", "duo", *SHORT, "--json")
    assert outcome.code == 0, outcome.stderr
    data: dict[str, Any] = outcome.json
    assert (data["kind"], data["sinks"], data["window"]) == ("duo", 2, 9)
    assert data["streaming_heads"] == sum(map(len, data["streaming"].values()))
    shown: dict[str, Any] = edgedec("inspect", "duo", "--json").json
    assert shown["kv_policy"] == {key: data[key] for key in ("kind", "weights_sha256", "sinks", "window", "streaming")}
    assert shown["config"][KV_POLICY] == shown["kv_policy"]
    assert re.search(r"policy of keys and values +duo: 2 sinks, window 9\n", edgedec("inspect", "duo").stdout)
    assert edgedec("inspect", bundle, "--json").json["kv_policy"] is None
    assert edgedec("generate", "-m", "duo", "-p", "?", "-n", "3", "--temp", "0").code == 0


@needs_torch
def test_the_table_names_the_heads_of_each_state(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("calibrate-kv", "-m", bundle, "-o", "duo", *SHORT, "--share", "1")
    assert outcome.code == 0, outcome.stderr
    assert "streaming heads            0 of " in outcome.stdout
    assert "layers.0.kv" in outcome.stdout


@needs_torch
def test_a_window_that_does_not_fit_is_refused(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("calibrate-kv", "-m", bundle, "-o", "duo", "--window", "100000")
    assert outcome.code == 2
    assert "--window must be less than the model's context of" in outcome.stderr
    assert not Path("duo").exists()


@needs_torch
@pytest.mark.parametrize("kind", ["double-sparsity", "nosa", "shadowkv"])
def test_a_bundle_whose_queries_choose_keys_is_made_inspected_planned_and_run(
    edgedec: Edgedec, bundle: Path, kind: str
) -> None:
    words = (
        "--kind",
        kind,
        "--keys",
        "12",
        "--recent",
        "2",
        "--sinks",
        "1",
        "--channels",
        "2",
        "--texts",
        "1",
        "-t",
        "1",
    )
    outcome = edgedec("calibrate-kv", "-m", bundle, "-o", "few", *words, "--json")
    assert outcome.code == 0, outcome.stderr
    data: dict[str, Any] = outcome.json
    assert data["kind"] == kind
    assert {own["keys"] for own in data["states"].values()} == {12}
    assert set(data["carried"]) == set(data["states"])
    assert {own.get("kept") for own in data["states"].values()} == ({4} if kind == "nosa" else {None})
    shown: dict[str, Any] = edgedec("inspect", "few", "--json").json
    assert shown["kv_policy"] == {key: data[key] for key in ("kind", "weights_sha256", "states")}
    assert re.search(rf"policy of keys and values +{kind}: queries choose", edgedec("inspect", "few").stdout)
    for policy, expected in (((), kind), (("--kv-policy", "full"), "full"), (("--kv-policy", kind), kind)):
        asked = ("-p", "?" * 20, "-n", "3", "--temp", "0", *policy)
        run: dict[str, Any] = edgedec("generate", "-m", "few", *asked, "--json").json
        assert run["timings"]["kv_policy"] == expected
        assert ("keys" in run["timings"]) == (expected == kind)
        plan: dict[str, Any] = edgedec("plan", "-m", "few", *policy, "--json").json
        assert plan["kv_policy"] == expected
        assert ("kv_labels" in plan["items"]) == (expected == kind)
    refused = edgedec("generate", "-m", bundle, "-p", "?", "--kv-policy", kind)
    assert refused.code == 2
    assert f"--kind {kind} -o NAME" in refused.stderr
    auto = edgedec("generate", "-m", "few", "-p", "?", "-n", "2", "--kv-policy", "auto")
    assert "keys and values: full, because the full cache fits" in auto.stderr
