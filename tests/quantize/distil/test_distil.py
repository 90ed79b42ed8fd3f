"""Test whole runs from a teacher to a checkpoint and a bundle: killed, resumed, repeated, restarted."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

import torch

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.quantize.distil import distil as distil_module
from edgedec.quantize.distil import text as text_module
from edgedec.quantize.distil.export import round_dense
from edgedec.quantize.distil.objective import text_loss
from edgedec.quantize.distil.schedule import Schedule
from edgedec.quantize.distil.student import StudentOptions, load_teacher
from edgedec.quantize.distil.torch_graph import TorchGraph
from edgedec.quantize.distil.trainer import Trainer
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.model_graph import bundle_graph
from tests.quantize.distil.support import bench_killed_run
from tests.quantize.distil.support.make_teachers import (
    CPU,
    distil,
    open_teacher,
    options,
    some_ids,
    tensors,
    write_teacher,
)
from tests.quantize.readers.support.make_checkpoints import write_llama2c

pytestmark = pytest.mark.compare

ROOT = Path(__file__).resolve().parents[3]
TERNARY: dict[str, dict[str, Any]] = {
    "absmean": {},
    "groups": {"group_size": 32},
    "planes": {"init": "planes"},
    "planes in groups": {"init": "planes", "group_size": 32},
    "random": {"init": "random"},
    "sub-norms": {"sub_norms": True},
    "sub-norms, planes in groups": {"sub_norms": True, "init": "planes", "group_size": 32},
    "deeper": {"layers": 3},
    "shallower": {"layers": 1},
    "another width": {"init": "random", "hidden_size": 64, "heads": 4, "intermediate_size": 32},
}


@pytest.fixture(autouse=True)
def _little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "_SEQUENCES", 8)


@pytest.fixture
def student(monkeypatch: pytest.MonkeyPatch) -> list[TorchGraph]:
    """Return the list to which each run adds its trained model."""
    models: list[TorchGraph] = []

    def rounded(model: TorchGraph) -> None:
        round_dense(model)
        models.append(model)

    monkeypatch.setattr(distil_module, "round_dense", rounded)
    return models


def quantized(folder: Path, output: Path, method: str) -> Bundle:
    quantize(open_checkpoint(folder), output, QuantizeOptions(method=method), vocab_limit=258)
    return Bundle.open(output)


def losses(folder: Path) -> list[dict[str, str]]:
    with (folder / "loss.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in csv.DictReader(file)]


def same(first: Path, second: Path) -> bool:
    ours, theirs = tensors(first), tensors(second)
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TERNARY)
def test_the_bundle_computes_what_the_student_computed(tmp_path: Path, kind: str, student: list[TorchGraph]) -> None:
    """Compare the reference with torch up to the last hidden state, because the bundle's head is int8 and the
    student's is not.

    Norms and products are float32 on both sides, in another order: 2e-5 of the largest value. An activation at the
    border of two codes may round either way, which later rows see as well: that gives up to 2e-2, but not in the first
    six rows.
    """
    opened = open_teacher(tmp_path / "teacher")
    report = distil(opened, tmp_path / "out", options(student=StudentOptions(**TERNARY[kind])))
    bundle = quantized(tmp_path / "out", tmp_path / "bundle", "ternary")
    assert bundle.quantization["group_size"] == TERNARY[kind].get("group_size", 0)
    assert report.ternary_parameters == sum(student[0].tensors[name].numel() for name in student[0].ternary_names)
    assert open_checkpoint(tmp_path / "out").config["model_type"] == ("bitnet" if "sub" in kind else "llama")
    graph = bundle_graph(bundle)
    model = ReferenceModel(graph, {name: bundle.weight(name) for name in graph.weights}.__getitem__)
    ids = some_ids(1)
    with torch.no_grad():
        logits, taps = student[0](ids, None, ("final_norm",))
    found, values = model.forward(ids[0].numpy().astype(np.int32), model.new_cache(), taps=("final_norm",))
    want = taps["final_norm"][0].numpy()
    errors = np.abs(values["final_norm"] - want).max(1) / np.abs(want).max()  # relative error of each row
    assert errors[:6].max() < 2e-5
    assert errors.max() < 2e-2
    assert np.abs(found - logits[0].numpy()).max() < 0.03 * np.abs(found).max(), "the int8 head"


@pytest.mark.thorough
def test_a_float_draft_is_quantized_to_int8(tmp_path: Path, student: list[TorchGraph]) -> None:
    student_options = StudentOptions(method="float", init="random", hidden_size=16, intermediate_size=16, layers=1)
    report = distil(open_teacher(tmp_path / "teacher"), tmp_path / "out", options(student=student_options))
    assert report.ternary_parameters == 0
    actual = tensors(tmp_path / "out")
    for name, value in student[0].tensors.items():
        assert np.array_equal(actual[name].astype(np.float32), value.detach().numpy())
    bundle = quantized(tmp_path / "out", tmp_path / "bundle", "int8")
    assert bundle.config["hidden_size"] == 16


@pytest.mark.thorough
def test_a_llama2c_teacher_can_be_distilled(tmp_path: Path) -> None:
    opened = open_checkpoint(write_llama2c(tmp_path / "llama2c"))
    distil(opened, tmp_path / "out", options(length=6, batch_tokens=24))
    again = open_checkpoint(tmp_path / "out")
    assert (again.bos_token_id, set(again.eos_token_ids)) == (1, {1, 2})
    assert not again.config.get("rope_interleaved")
    quantize(again, tmp_path / "bundle", QuantizeOptions(method="ternary"), vocab_limit=13)


@pytest.mark.thorough
def test_the_report_has_perplexities_of_the_held_out_text(tmp_path: Path, student: list[TorchGraph]) -> None:
    opened = open_teacher(tmp_path / "teacher")
    report = distil(opened, tmp_path / "out", options(batch_tokens=70))
    parts = sorted((tmp_path / "out.run").glob("text-*/*.npy"))
    ids = np.concatenate([np.load(part) for part in parts])
    held_out = ids[-max(18, round(0.02 * len(ids))) :]
    rows = torch.from_numpy(held_out[: len(held_out) // 17 * 17].reshape(-1, 17).astype(np.int64))
    assert report.teacher_perplexity == pytest.approx(np.exp(text_loss(load_teacher(opened, 16), rows)))
    assert report.student_perplexity == pytest.approx(np.exp(text_loss(student[0], rows)))
    assert report.tokens == 4 * 64, "whole rows"
    assert report.parameters == sum(p.numel() for p in student[0].parameters())
    assert (report.run_folder / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_a_student_learns(tmp_path: Path) -> None:
    """Start from random weights and train on the text that the teacher was given."""
    text = tmp_path / "text"
    text.write_text("the cat sat on the mat and " * 80)
    opened = open_teacher(tmp_path / "teacher")
    run_options = options(steps=40, learning_rate=1e-2, student=StudentOptions(init="random"))
    run_options = replace(run_options, objective=replace(run_options.objective, text=1.0, logits=0.0, hidden=0.0))
    report = distil(opened, tmp_path / "out", run_options, text=[text], every=40)
    assert report.student_perplexity < 30
    assert report.student_perplexity < report.teacher_perplexity / 5
    assert not list((tmp_path / "out.run").glob("text-*")), "nothing was sampled"


@pytest.mark.thorough
def test_bfloat16_training_writes_a_checkpoint(tmp_path: Path) -> None:
    report = distil(open_teacher(tmp_path / "teacher"), tmp_path / "out", place=replace(CPU, autocast=True))
    exact = distil(open_teacher(tmp_path / "again"), tmp_path / "exact")
    assert report.student_perplexity == pytest.approx(exact.student_perplexity, rel=0.05)
    assert quantized(tmp_path / "out", tmp_path / "bundle", "ternary").quantization["method"] == "ternary"


@pytest.mark.thorough
def test_the_student_keeps_tokens_and_template(tmp_path: Path) -> None:
    opened = open_teacher(tmp_path / "teacher", eos_token_id=[257, 3])
    distil(opened, tmp_path / "out")
    again = open_checkpoint(tmp_path / "out")
    for name in ("bos_token", "bos_token_id", "eos_token", "eos_token_ids", "chat_template", "tokenizer_json"):
        assert getattr(again, name) == getattr(opened, name), name
    sizes = ("max_position_embeddings", "vocab_size", "rms_norm_eps", "tie_word_embeddings", "num_key_value_heads")
    assert all(again.config[key] == opened.config[key] for key in sizes)


# --- killed and resumed -----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("moment", bench_killed_run.MOMENTS)
def test_a_killed_run_ends_like_a_whole_one(tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "_SEQUENCES", 64)  # the same as in the other process
    teacher = write_teacher(tmp_path / "teacher")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "tests.quantize.distil.support.bench_killed_run",
        str(teacher),
        str(tmp_path / "out"),
        moment,
    ]
    process = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == -9, process.stderr
    assert not (tmp_path / "out").exists()
    resumed = distil(open_checkpoint(teacher), tmp_path / "out", options(steps=6))
    whole = distil(open_checkpoint(teacher), tmp_path / "whole", options(steps=6))
    assert same(tmp_path / "out", tmp_path / "whole")
    assert losses(tmp_path / "out.run") == losses(tmp_path / "whole.run")
    assert [row["step"] for row in losses(tmp_path / "out.run")] == ["2", "4", "6"]
    assert resumed.student_perplexity == whole.student_perplexity
    states = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("out.run", "whole.run")]
    assert all(torch.equal(a, b) for a, b in zip(*(state["model"].values() for state in states), strict=True))


@pytest.mark.thorough
def test_two_runs_are_equal(tmp_path: Path) -> None:
    teacher = open_teacher(tmp_path / "teacher")
    for name, seed in (("one", 1), ("two", 1), ("other", 2)):
        distil(teacher, tmp_path / name, options(seed=seed))
    assert same(tmp_path / "one", tmp_path / "two")
    assert not same(tmp_path / "one", tmp_path / "other")


@pytest.mark.thorough
def test_a_finished_run_only_writes_its_output_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_teacher(tmp_path / "teacher")
    first = distil(opened, tmp_path / "out")
    distil(opened, tmp_path / "kept")
    monkeypatch.setattr(distil_module, "start_student", lambda *rest: pytest.fail("begun again"))
    monkeypatch.setattr(Trainer, "_one_step", lambda *rest: pytest.fail("trained again"))
    monkeypatch.setattr(text_module, "_sample", lambda *rest: pytest.fail("sampled again"))
    checkpoint = (tmp_path / "out.run/checkpoint.pt").stat().st_mtime_ns
    (tmp_path / "out/model.safetensors").unlink()
    again = distil(opened, tmp_path / "out")
    assert same(tmp_path / "out", tmp_path / "kept")
    assert (again.student_perplexity, again.teacher_perplexity) == (first.student_perplexity, first.teacher_perplexity)
    assert (tmp_path / "out.run/checkpoint.pt").stat().st_mtime_ns == checkpoint
    assert losses(tmp_path / "out.run") == losses(tmp_path / "kept.run")


@pytest.mark.thorough
def test_a_measured_precision_is_kept(tmp_path: Path) -> None:
    opened = open_teacher(tmp_path / "teacher")
    distil(opened, tmp_path / "out", place=replace(CPU, autocast=False, measured=True))
    distil(opened, tmp_path / "out", place=replace(CPU, autocast=True, measured=True))
    with pytest.raises(UsageError, match="autocast was False, is True"):
        distil(opened, tmp_path / "out", place=replace(CPU, autocast=True))


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"steps": 5}, {}, "schedule.steps was 4, is 5"),
        ({"seed": 3}, {}, "seed was 0, is 3"),
        ({"student": StudentOptions(group_size=32)}, {}, "student.group_size was 0, is 32"),
        ({}, {"threads": 2}, "threads was 1, is 2"),
        ({}, {"compiled": True}, "compiled was False, is True"),
    ],
)
def test_another_configuration_is_refused_and_changes_nothing(
    tmp_path: Path, changes: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    opened = open_teacher(tmp_path / "teacher")
    distil(opened, tmp_path / "out")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError) as caught:
        distil(opened, tmp_path / "out", options(**changes), **arguments)
    assert f"holds a run with another configuration: {message}. Give the old values" in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.thorough
def test_another_teacher_is_another_run_with_its_own_text(tmp_path: Path) -> None:
    """Change one weight of one matrix; after --restart the run samples its own text and does not take the other's."""
    distil(open_teacher(tmp_path / "teacher"), tmp_path / "out")
    opened = open_teacher(tmp_path / "other")
    name = "model.layers.1.mlp.up_proj.weight"

    def read(tensor_name: str) -> Any:
        array = opened.load(tensor_name)
        array[-1, -1] += np.float32(tensor_name == name)
        return array

    changed = replace(opened, read_tensor=lambda key: read(key) if key == name else opened.load(key))
    with pytest.raises(UsageError, match=r"another configuration: teacher was '[0-9a-f]{16}', is '[0-9a-f]{16}'"):
        distil(changed, tmp_path / "out")
    distil(changed, tmp_path / "out", restart=True)
    distil(changed, tmp_path / "fresh")
    assert same(tmp_path / "out", tmp_path / "fresh")
    assert len(list((tmp_path / "out.run").glob("text-*"))) == 2


@pytest.mark.thorough
def test_restart_begins_anew_and_keeps_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_teacher(tmp_path / "teacher")
    distil(opened, tmp_path / "out")
    faster = replace(options(), schedule=Schedule(steps=4, learning_rate=1e-2, warmup_steps=0))
    distil(opened, tmp_path / "fresh", faster)
    monkeypatch.setattr(text_module, "_sample", lambda *rest: pytest.fail("sampled again"))
    distil(opened, tmp_path / "out", faster, restart=True)
    assert same(tmp_path / "out", tmp_path / "fresh")
    assert losses(tmp_path / "out.run") == losses(tmp_path / "fresh.run")


@pytest.mark.thorough
def test_the_interval_of_validations_changes_nothing(tmp_path: Path) -> None:
    opened = open_teacher(tmp_path / "teacher")
    for name, every in (("one", 1), ("three", 3)):
        distil(opened, tmp_path / name, every=every)
    assert same(tmp_path / "one", tmp_path / "three")
    assert [row["step"] for row in losses(tmp_path / "three.run")] == ["3", "4"]
