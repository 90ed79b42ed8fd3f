"""Run benchmarks/server/harness.py: lm-evaluation-harness against a server, its figures beside those of `edgedec eval`."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def harness() -> Any:
    return importlib.import_module("benchmarks.server.harness")


def test_figures_that_differ_are_named(harness: Any) -> None:
    own = {"accuracy": 0.5, "bits_per_byte": 0.25}
    assert harness.differences(own, {"accuracy": 0.5, "bits_per_byte": 0.25 + 1e-7}) == []
    assert harness.differences(own, {"accuracy": 0.5, "bits_per_byte": 0.250002}) == ["bits_per_byte"]
    assert harness.differences(own, {"accuracy": 0.6, "bits_per_byte": 0.25}) == ["accuracy"]


def test_the_tasks_have_the_question_after_the_first_token(harness: Any, tmp_path: Path) -> None:
    harness.task_files(tmp_path, questions=tmp_path / "q.jsonl", text="a story", bos="<s>")
    task = json.loads((tmp_path / "edgedec_questions.yaml").read_text("utf-8"))
    assert task["doc_to_text"] == "<s>{{question}}"
    assert task["dataset_kwargs"]["data_files"]["test"] == str(tmp_path / "q.jsonl")
    assert json.loads((tmp_path / "text.jsonl").read_text("utf-8")) == {"text": "a story"}


@pytest.mark.nightly
def test_its_figures_are_those_of_eval(harness: Any, capsys: pytest.CaptureFixture[str]) -> None:
    program = shutil.which("lm_eval")
    if program is None:
        pytest.skip("there is no lm_eval on the PATH; benchmarks/server/harness.py says how to install it")
    assert harness.main(["--lm-eval", program, "--questions", "4", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert set(figures) == {"edgedec eval", *(f"lm_eval, {mode}" for mode in harness.MODES)}
    assert 0 < figures["edgedec eval"]["bits_per_byte"] < 2
