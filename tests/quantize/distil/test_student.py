"""Test the weights with which a student begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from edgedec.errors import EdgedecError, UnsupportedError, UsageError
from edgedec.quantize.distil.student import (
    StudentOptions,
    _layer_source,
    load_teacher,
    make_student,
    settle_sub_norms,
    start_student,
    student_config,
    ternary_latent,
)
from edgedec.quantize.distil.ternary import ternary_weight
from edgedec.quantize.distil.torch_graph import TorchGraph
from edgedec.quantize.methods.planes import quantize_planes
from edgedec.quantize.readers import Checkpoint, open_checkpoint
from tests.quantize.distil.support.make_teachers import open_teacher, some_ids
from tests.quantize.readers.support.make_checkpoints import write_llama2c

pytestmark = pytest.mark.compare


def started(checkpoint: Checkpoint, *, positions: int = 16, **options: Any) -> TorchGraph:
    student_options = StudentOptions(**options)
    student, _ = make_student(checkpoint, student_options, positions)
    start_student(student, checkpoint, student_options)
    return student


def difference(first: TorchGraph, second: TorchGraph, ids: torch.Tensor) -> float:
    with torch.no_grad():
        return float((first(ids)[0] - second(ids)[0]).abs().max())


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False, "attention_bias": True}])
def test_a_float_student_equals_the_teacher(tmp_path: Path, changes: dict[str, Any]) -> None:
    opened = open_teacher(tmp_path / "teacher", **changes)
    assert difference(started(opened, method="float"), load_teacher(opened, 16), some_ids()) < 1e-5


def test_neighbouring_rotary_pairs_become_halves(tmp_path: Path) -> None:
    """Load a llama2.c file with grouped heads: the student's configuration has no rope_interleaved."""
    opened = open_checkpoint(write_llama2c(tmp_path / "llama2c"))
    assert opened.config["rope_interleaved"]
    student = started(opened, method="float", positions=6)
    assert "rope_interleaved" not in student_config(opened, StudentOptions())
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 13, (3, 6)))
    assert difference(student, load_teacher(opened, 6), ids) < 1e-5


def test_biases_of_interleaved_rows_are_reordered_too(tmp_path: Path) -> None:
    opened = open_teacher(tmp_path / "teacher", rope_interleaved=True, attention_bias=True)
    assert difference(started(opened, method="float"), load_teacher(opened, 16), some_ids()) < 1e-5


# --- depth ------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@given(st.integers(1, 40), st.integers(1, 40))
def test_each_layer_starts_from_one_at_the_same_depth(ours: int, theirs: int) -> None:
    sources = [_layer_source(layer, ours, theirs) for layer in range(ours)]
    starts = [source for source, _ in sources]
    assert starts == sorted(starts)
    assert starts[-1] == theirs - 1
    if ours <= theirs:
        assert all(times == 1 for _, times in sources)
        assert len(set(starts)) == ours
    else:
        assert set(starts) == set(range(theirs))
        assert all(starts.count(source) == times for source, times in sources)


def test_a_deeper_student_starts_with_each_layer_in_parts(tmp_path: Path) -> None:
    """Check that two layers with half of the output each are near the teacher, and two whole copies are not."""
    loud = open_teacher(tmp_path / "teacher")

    def small(name: str) -> Any:  # layers whose output hardly changes the input of later ones
        return loud.load(name) * np.float32(0.2 if "o_proj" in name or "down_proj" in name else 1)

    opened = replace(loud, read_tensor=small)
    teacher, ids = load_teacher(opened, 16), some_ids()
    student = started(opened, method="float", layers=4)
    name = "model.layers.{}.mlp.{}_proj.weight"
    for ours, theirs in ((0, 0), (1, 0), (2, 1), (3, 1)):
        down, up = (
            (student.tensors[name.format(ours, part)], teacher.tensors[name.format(theirs, part)])
            for part in ("down", "up")
        )
        assert torch.equal(2 * down[0], down[1])
        assert torch.equal(up[0], up[1])

    def distance() -> float:
        with torch.no_grad():
            return float((student(ids)[0] - teacher(ids)[0]).square().mean())

    half = distance()
    with torch.no_grad():
        for tensor_name, tensor in student.tensors.items():
            if "o_proj" in tensor_name or "down_proj" in tensor_name:
                tensor.mul_(2)
    assert half < 0.05 * distance()


def test_a_shallow_student_starts_from_the_last_layer(tmp_path: Path) -> None:
    opened = open_teacher(tmp_path / "teacher", num_hidden_layers=3)
    student, teacher = started(opened, method="float", layers=1), load_teacher(opened, 16)
    name = "model.layers.{}.self_attn.o_proj.weight"
    assert torch.equal(student.tensors[name.format(0)], teacher.tensors[name.format(2)])


# --- planes -----------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.integers(0, 1 << 30), st.sampled_from([0, 32, 64, 128]), st.integers(1, 6), st.sampled_from([0.0, 0.5]))
def test_the_first_rounding_of_planes_is_the_fitted_plane(seed: int, size: int, rows: int, zeros: float) -> None:
    rng = np.random.default_rng(seed)
    weight = (rng.standard_normal((rows, 256)) * np.exp(rng.uniform(-3, 3, (rows, 1)))).astype(np.float32)
    weight[rng.random(weight.shape) < zeros] = 0
    plane = quantize_planes(weight, 1, size or 64)[0][0]
    latent = torch.from_numpy(ternary_latent(weight, size))
    trits, scale = (value.numpy() for value in ternary_weight(latent, size))
    assert np.array_equal(trits, plane)
    groups = (rows, -1, size) if size else (1, 1, weight.size)
    grouped, signs = (array.reshape(groups).astype(np.float64) for array in (weight, plane))
    want = (grouped * signs).sum(-1) / np.maximum(np.abs(signs).sum(-1), 1)  # least squares
    assert np.allclose(scale.reshape(want.shape), np.maximum(want, 1e-5), rtol=1e-5)


def test_a_group_of_zeros_stays_zero() -> None:
    weight = np.zeros((2, 64), np.float32)
    weight[0, :32] = 1
    trits, scale = ternary_weight(torch.from_numpy(ternary_latent(weight, 32)), 32)
    assert np.array_equal(trits.numpy(), weight)
    assert scale[0, 0] == 1


@pytest.mark.parametrize("group_size", [0, 32])
def test_planes_are_nearer_to_the_teacher_than_absmean(tmp_path: Path, group_size: int) -> None:
    opened = open_teacher(tmp_path / "teacher")
    teacher = load_teacher(opened, 16)

    def error(init: str) -> float:
        student = started(opened, init=init, group_size=group_size)
        return sum(
            float((dense - teacher.tensors[name]).square().sum())
            for name in student.ternary_names
            for trits, scale in [ternary_weight(student.tensors[name].detach(), group_size)]
            for dense in [trits * (scale.repeat_interleave(group_size, 1) if group_size else scale)]
        )

    assert error("planes") < error("absmean")


# --- sub-norms --------------------------------------------------------------------------------------------------------


def test_sub_norms_make_a_bitnet_of_a_llama(tmp_path: Path) -> None:
    """Check that the values that Llama implies are written, because BitNet has other defaults."""
    opened = open_teacher(tmp_path / "teacher", rms_norm_eps=None)
    config = student_config(opened, StudentOptions(sub_norms=True))
    assert (config["model_type"], config["hidden_act"]) == ("bitnet", "silu")
    assert (config["rope_theta"], config["rms_norm_eps"]) == (10000.0, 1e-6)
    student, teacher = started(opened, sub_norms=True), load_teacher(opened, 16)
    for name in ("layers.0.attn_norm", "layers.0.q"):
        ours, theirs = (next(op for op in m.graph.operations if op.name == name) for m in (student, teacher))
        assert getattr(ours, "eps", 0) == getattr(theirs, "eps", 0)
        assert getattr(ours, "inverse_frequencies", 0) == getattr(theirs, "inverse_frequencies", 0)


def test_settled_sub_norms_keep_the_size_of_their_inputs(tmp_path: Path) -> None:
    opened = open_teacher(tmp_path / "teacher")
    student, teacher, ids = started(opened, sub_norms=True), load_teacher(opened, 16), some_ids(4)
    settle_sub_norms(student, teacher.graph, ids)
    taps = tuple(op.inputs[0] for op in student.graph.operations if op.name.endswith("sub_norm"))
    norms = tuple(f"{name.rsplit('.', 1)[0]}.{'attn' if 'attn' in name else 'ffn'}_sub_norm" for name in taps)
    assert len(taps) == 4
    with torch.no_grad():
        _, values = student(ids, None, (*taps, *norms))
    for before, after in zip(taps, norms, strict=True):
        size, settled = (float(values[name].square().mean().sqrt()) for name in (before, after))
        assert settled == pytest.approx(size, rel=0.02)


def test_a_bitnet_teacher_keeps_its_own_sub_norms(tmp_path: Path) -> None:
    opened = open_teacher(tmp_path / "teacher", model_type="bitnet", hidden_act="relu2")
    student, teacher = started(opened, method="float"), load_teacher(opened, 16)
    settle_sub_norms(student, teacher.graph, some_ids())
    assert difference(student, teacher, some_ids()) < 1e-5
    assert student_config(opened, StudentOptions(sub_norms=True))["hidden_act"] == "relu2"


# --- options ----------------------------------------------------------------------------------------------------------


def test_a_student_may_have_another_width(tmp_path: Path) -> None:
    opened = open_teacher(tmp_path / "teacher", num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    student_options = StudentOptions(
        method="float", init="random", hidden_size=16, intermediate_size=24, heads=2, layers=1
    )
    student, config = make_student(opened, student_options, 16)
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers")
    assert [config[key] for key in sizes] == [16, 24, 2, 1, 1]
    start_student(student, opened, student_options, seed=5)
    assert student(some_ids())[0].shape == (2, 12, 264)


def test_every_end_token_is_written(tmp_path: Path) -> None:
    """Check the tokens of generation_config.json, a file that a student does not have."""
    opened = open_teacher(tmp_path / "teacher", eos_token_id=[257, 3], bos_token_id=None)
    config = student_config(opened, StudentOptions())
    assert (config["eos_token_id"], config["bos_token_id"]) == ([257, 3], 256)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "int8"}, "--method must be one of ternary, float, not 'int8'"),
        ({"init": "zeros"}, "--init must be one of absmean, planes, random, not 'zeros'"),
        ({"group_size": 48}, "--group-size must be 0 .* 32, 64 or 128, not 48"),
        ({"layers": -1}, "--layers must be 1 or more, or 0 for the teacher's, not -1"),
        ({"method": "float", "sub_norms": True}, "are for ternary students, not --method float"),
        ({"hidden_size": 8}, "add --init random, or leave out --hidden-size"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StudentOptions(**options)


@pytest.mark.parametrize(
    ("teacher", "options", "error", "message"),
    [
        (
            {"head_dim": 8},
            {"sub_norms": True},
            UsageError,
            "--sub-norms: 2 heads of 8 are 16 wide, .* as wide as the model, 32; leave the option out",
        ),
        ({"mlp_bias": True}, {"sub_norms": True}, UnsupportedError, "no form of 'llama' with biases in its MLP"),
        (
            {},
            {"heads": 3, "init": "random"},
            UsageError,
            "--heads must be a multiple of 2: 2 of the teacher's heads",
        ),
        ({}, {"layers": 9}, UsageError, "--layers must be at most 8, 4 times the teacher's 2, not 9"),
        ({"num_hidden_layers": 3}, {"layers": 99}, UsageError, "--layers must be at most 12, 4 times the teacher's 3"),
        ({}, {"group_size": 64}, UnsupportedError, "has 32 columns, which groups of 64 do not divide"),
    ],
)
def test_options_that_do_not_fit_the_teacher_are_refused(
    tmp_path: Path, teacher: dict[str, Any], options: dict[str, Any], error: type[EdgedecError], message: str
) -> None:
    opened = open_teacher(tmp_path / "teacher", **teacher)
    with pytest.raises(error, match=message):
        make_student(opened, StudentOptions(**options), 16)


HYBRID = {"model_type": "qwen3_5_text", "full_attention_interval": 2, "num_attention_heads": 2, "head_dim": 16} | {
    f"linear_{name}": size
    for name, size in (("num_key_heads", 2), ("num_value_heads", 4), ("key_head_dim", 8), ("value_head_dim", 8))
}


def test_a_student_of_a_hybrid_begins_with_its_layers_and_cannot_have_fewer(tmp_path: Path) -> None:
    opened = open_teacher(tmp_path / "teacher", num_hidden_layers=4, **HYBRID)
    assert difference(started(opened, method="float"), load_teacher(opened, 16), some_ids()) < 1e-5
    with pytest.raises(UnsupportedError, match=r"--layers: the layers of a 'qwen3_5_text' are of different kinds"):
        started(opened, layers=2)
    assert len(started(opened, layers=2, init="random").graph.states) == 1


def test_a_model_without_attention_has_students_too(tmp_path: Path) -> None:
    sizes = {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2, "expand": 2, "num_attention_heads": None}
    opened = open_teacher(tmp_path / "teacher", model_type="mamba2", **sizes)
    assert difference(started(opened, method="float"), load_teacher(opened, 16), some_ids()) < 1e-5
    with pytest.raises(UsageError, match="--heads: a 'mamba2' has no attention; leave the option out"):
        started(opened, heads=2, init="random")
