"""The functions of the Python API, on a small checkpoint, and against the command line and the session."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.api import plan_run, quantize_checkpoint
from edgedec.bundle.bundle import Bundle
from edgedec.errors import BudgetError, UsageError
from edgedec.quantize.readers import open_checkpoint
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.text.tokenizer import Tokenizer
from tests.edgedec.cli.support.make_known_model import BOS, ENDLESS, write_checkpoint

TEXT = f"o{ENDLESS}" * 40


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("a checkpoint") / "model")


def test_an_opened_checkpoint_and_its_path_give_the_same_bundle(checkpoint: Path, tmp_path: Path) -> None:
    report = quantize_checkpoint(str(checkpoint), str(tmp_path / "one"))
    again = quantize_checkpoint(open_checkpoint(checkpoint), tmp_path / "two", method="int8")
    one, two = Bundle.open(tmp_path / "one"), Bundle.open(tmp_path / "two")
    assert one.sha256 == two.sha256
    assert list(report.seconds) == list(again.seconds) == ["reading", "quantizing", "writing", "reading back"]
    assert asdict(report) == asdict(replace(again, seconds=report.seconds))
    assert report.stored_bytes == sum(tensor.nbytes for tensor in one.tensors.values())
    assert 8 < report.bits_per_weight < 9


def test_a_bundle_is_replaced_and_another_folder_is_not(checkpoint: Path, tmp_path: Path) -> None:
    quantize_checkpoint(checkpoint, tmp_path / "out", method="float")
    quantize_checkpoint(checkpoint, tmp_path / "out")
    assert Bundle.open(tmp_path / "out").quantization["method"] == "int8"
    (tmp_path / "diary").write_text("dear")
    with pytest.raises(UsageError, match=r"it exists and holds no manifest\.json"):
        quantize_checkpoint(checkpoint, tmp_path)
    assert (tmp_path / "diary").read_text() == "dear"


@pytest.mark.thorough
def test_planes_are_fitted_to_a_text_to_its_ids_to_the_models_own_text_or_to_the_weights(
    checkpoint: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(checkpoint / "tokenizer.json")
    ids = tokenizer.encode(TEXT, add_special=False)
    length = 256  # the first window: BOS and 255 ids
    windows = np.concatenate([[BOS], ids[: length - 1]]).astype(np.int32)[None]
    options: dict[str, dict[str, Any]] = {
        "text": {"calibration": TEXT, "calibration_tokens": length},
        "ids": {"calibration": windows},
        "own": {"calibration_tokens": length},
        "own again": {"calibration_tokens": length},
        "another seed": {"calibration_tokens": length, "seed": 1},
        "weights": {"calibration_tokens": 0},
    }
    hashes, tokens = {}, {}
    for name, values in options.items():
        quantize_checkpoint(checkpoint, tmp_path / name, method="ternary", planes=2, group_size=32, **values)
        bundle = Bundle.open(tmp_path / name)
        hashes[name], tokens[name] = bundle.sha256, bundle.quantization["calibration_tokens"]
    assert hashes["text"] == hashes["ids"]
    assert hashes["own"] == hashes["own again"]
    assert len(set(hashes.values())) == 4
    assert tokens == dict.fromkeys(options, length) | {"weights": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calibration": "text"}, "calibration is for ternary planes and int4: give planes 1, 2 or 3"),
        ({"method": "ternary", "planes": 1, "calibration": ""}, "the calibration text: too short"),
        ({"method": "quaternary"}, "method must be one of int8, int4, ternary, float, not 'quaternary'"),
        ({"pool": "cluster"}, "'cluster'"),
        ({"tokenizer": "missing.json"}, r"missing\.json: no such tokenizer"),
    ],
)
def test_a_wrong_request_is_refused_and_writes_nothing(
    checkpoint: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        quantize_checkpoint(checkpoint, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_a_plan_is_what_a_session_runs_by(checkpoint: Path, tmp_path: Path) -> None:
    path, told = tmp_path / "a bundle", list[str]()
    quantize_checkpoint(checkpoint, path, progress=lambda name, done, total: told.append(name))
    assert "model.embed_tokens.weight" in told
    spec, budget = SpecConfig(drafter="ngram"), 16 << 20
    planned = [plan_run(where, threads=1, spec=spec, budget_bytes=budget) for where in (path, str(path))]
    with Session.open(path, threads=1, spec=spec, budget_bytes=budget) as session:
        plans = [asdict(plan) | {"baseline_bytes": 0} for plan in (*planned, session.run.plan)]
    assert plans[0] == plans[1] == plans[2]
    assert planned[0].fits
    assert planned[0].baseline_bytes > 0

    small = plan_run(path, budget_bytes=1 << 20)
    assert not small.fits
    assert small.hint
    with pytest.raises(BudgetError, match=r"the memory budget is 1\.0 MiB"):
        small.require()
