"""Test one step, many steps, and steps that fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from edgedec.errors import BundleError, EdgedecError
from edgedec.quantize.distil.objective import Objective, ObjectiveOptions
from edgedec.quantize.distil.run_folder import RunFolder
from edgedec.quantize.distil.schedule import Batches, Schedule
from edgedec.quantize.distil.torch_graph import Ternary, TorchGraph
from edgedec.quantize.distil.trainer import Trainer, Validation
from tests.quantize.distil.support.make_teachers import CPU, model

pytestmark = pytest.mark.compare

WORDS = np.array([*b"the cat sat on the mat and "], np.uint16)


def trainer(
    path: Path,
    *,
    student: TorchGraph | None = None,
    teacher: TorchGraph | None = None,
    steps: int = 3,
    learning_rate: float = 3e-3,
    accumulate: int = 1,
    autocast: bool = False,
    every: int = 100,
    compiled: bool = False,
    seed: int = 0,
) -> Trainer:
    folder = RunFolder(path=path)
    folder.begin({})
    training = Trainer(
        Objective(student or model(seed=1), (teacher or model()).requires_grad_(False), ObjectiveOptions()),
        Batches(
            train=np.tile(WORDS, 40), valid=np.tile(WORDS, 8), tokens=64, length=8, accumulate=accumulate, seed=seed
        ),
        Schedule(steps=steps, learning_rate=learning_rate, warmup_steps=0),
        folder,
        replace(CPU, autocast=autocast),
        every=every,
        compiled=compiled,
    )
    return training


def parameters(training: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in training.objective.parameters()])


@pytest.mark.thorough
@pytest.mark.parametrize("parts", [2, 8])
def test_accumulated_parts_equal_one_batch(tmp_path: Path, parts: int) -> None:
    """Compare gradients, which are summed in another order, because Adam makes a full step of one near zero."""
    results = []
    for count in (1, parts):
        training = trainer(tmp_path / str(count), accumulate=count, every=1)
        reports: list[Validation] = []
        training.train(tell=reports.append)
        training = trainer(tmp_path / f"{count} once", accumulate=count, steps=1)
        training.train()
        gradients: list[Any] = [p.grad for p in training.objective.parameters()]
        results.append((torch.cat([gradient.flatten() for gradient in gradients]), reports))
    (whole, seen_one), (accumulated, seen_many) = results
    assert (whole - accumulated).abs().max() < 1e-5 * whole.abs().max()
    for ours, theirs in zip(seen_one, seen_many, strict=True):
        assert (ours.loss, ours.valid) == pytest.approx((theirs.loss, theirs.valid), rel=1e-3)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("ternary", [None, Ternary(), Ternary(group_size=32)])
def test_training_learns_the_text(tmp_path: Path, ternary: Ternary | None) -> None:
    """Train on the text alone, against a teacher of noise; the caller of the trainer chooses the weights of the
    objective.
    """
    student = model(seed=1, ternary=ternary)
    training = trainer(tmp_path, student=student, steps=25, learning_rate=1e-2, every=5)
    training.objective.options = ObjectiveOptions(text=1, logits=0, hidden=0)
    reports: list[Validation] = []
    before = training.validate()
    training.train(tell=reports.append)
    assert [checked.step for checked in reports] == [5, 10, 15, 20, 25]
    assert reports[-1].valid < 0.6 * before
    assert reports[-1].valid == pytest.approx(training.validate(), rel=1e-6)
    assert all(checked.tokens_per_second > 0 and checked.seconds_left >= 0 for checked in reports)
    rows = training.folder.rows()
    assert [int(row["step"]) for row in rows] == [5, 10, 15, 20, 25]
    assert float(rows[-1]["valid"]) == pytest.approx(reports[-1].valid, abs=1e-5)


def test_the_line_of_a_validation_has_its_figures() -> None:
    checked = Validation(step=50, loss=1.2345, text=1, valid=math.log(7), tokens_per_second=1234.5, seconds_left=75)
    assert checked.line(100) == "step 50/100  loss 1.234  held-out perplexity 7.00  1,234 tokens/s  1:15 to go"
    assert "perplexity 51847055285870720" in replace(checked, valid=1e9).line(100), "no OverflowError"


def test_gains_never_decay_and_matrices_stop_halfway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = trainer(tmp_path, steps=4)
    groups = []
    step = training.optimizer.step

    def watched() -> None:
        groups.append([(group["weight_decay"], group["params"][0].ndim) for group in training.optimizer.param_groups])
        step()

    monkeypatch.setattr(training.optimizer, "step", watched)
    training.train()
    assert groups == 2 * [[(0.1, 2), (0.0, 1)]] + 2 * [[(0.0, 2), (0.0, 1)]]
    assert all(p.ndim == 1 for p in training.optimizer.param_groups[1]["params"])


@pytest.mark.thorough
def test_bfloat16_autocast_trains_float32_weights(tmp_path: Path) -> None:
    losses: dict[bool, list[Validation]] = {False: [], True: []}
    for autocast, reports in losses.items():
        training = trainer(
            tmp_path / str(autocast), student=model(seed=1, ternary=Ternary()), autocast=autocast, every=1
        )
        training.train(tell=reports.append)
        assert {p.dtype for p in training.objective.parameters()} == {torch.float32}
        assert _logits_type(training) == (torch.bfloat16 if autocast else torch.float32)
    for ours, theirs in zip(*losses.values(), strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=0.03)
        assert ours.loss != theirs.loss


def _logits_type(training: Trainer) -> torch.dtype:
    with training._autocast(), torch.no_grad():
        logits: torch.Tensor = training.objective.student(torch.from_numpy(training.batches.valid_rows()))[0]
    return logits.dtype


def test_only_whole_batches_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check this because validations have another number of rows, which would be compiled separately."""
    shapes = set()

    def compiled(run: Callable[[torch.Tensor], Any], *, dynamic: bool) -> Callable[[torch.Tensor], Any]:
        assert not dynamic  # rows of two lengths are compiled twice, not once for any length

        def watched(ids: torch.Tensor) -> Any:
            shapes.add(tuple(ids.shape))
            return run(ids)

        return watched

    monkeypatch.setattr(torch, "compile", compiled)
    trainer(tmp_path, accumulate=2, compiled=True, every=1).train()
    assert shapes == {(4, 9)}


def test_weights_without_moments_begin_with_a_short_warm_up(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    schedule = [one.rate(step) for step in range(3)]
    one.take_up(1)
    assert one.step == 1
    assert one.rate(1) == pytest.approx(schedule[1] / 20)
    assert one.rate(2) == pytest.approx(schedule[2] * 2 / 20)
    one.train()
    later = trainer(tmp_path)
    later.resume()
    assert later.taken_up_at == 1


# --- no numbers -------------------------------------------------------------------------------------------------------


def stopped(training: Trainer) -> str:
    with pytest.raises(EdgedecError) as caught:
        training.train()
    return str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_tensor_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    training = trainer(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    with torch.no_grad():
        training.objective.student.tensors[name][2, 3] = value
    message = stopped(training)
    assert message.startswith(
        f"training stopped at step 0: tensor {name} of the student is not finite; no checkpoint yet."
    )
    assert "smaller --learning-rate (now 0.003) or --precision float32, with --restart" in message
    assert not training.folder.checkpoint.exists()


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_a_layer_that_overflows_is_named(tmp_path: Path, role: str) -> None:
    models: dict[str, Any] = {"student": model(seed=1), "teacher": model()}
    with torch.no_grad():
        models[role].tensors["model.layers.1.mlp.up_proj.weight"].fill_(1e38)
        models[role].tensors["model.layers.1.post_attention_layernorm.weight"].fill_(10)
    message = stopped(trainer(tmp_path, **models))
    assert f"layers.1.up of the {role} is the first value that is not finite" in message


def test_a_gradient_that_is_not_finite_is_named(tmp_path: Path) -> None:
    """Check this because clipping by a norm that is not finite would spoil every gradient."""
    training = trainer(tmp_path)
    name = "model.layers.0.self_attn.o_proj.weight"
    tensor: Any = training.objective.student.tensors[name]
    tensor.register_hook(lambda gradient: gradient * math.nan)
    assert f"the gradient of {name} is not finite" in stopped(training)


def test_a_model_that_is_not_finite_never_becomes_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = trainer(tmp_path, steps=4, every=2)
    step = training.optimizer.step

    def broken() -> None:
        step()
        if training.step == 3:  # the last step, whose loss was still finite
            with torch.no_grad():
                training.objective.student.tensors["model.norm.weight"][0] = math.nan

    monkeypatch.setattr(training.optimizer, "step", broken)
    message = stopped(training)
    assert "tensor model.norm.weight of the student is not finite" in message
    assert f"the last good checkpoint is {training.folder.checkpoint}" in message
    assert training.folder.load()["step"] == 2
    assert [row["step"] for row in training.folder.rows()] == ["2"]


# --- resumed runs -----------------------------------------------------------------------------------------------------


def test_resumed_steps_equal_those_of_a_whole_run(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", steps=6, every=2)
    whole.train()
    first = trainer(tmp_path / "parts", steps=6, every=2)
    with pytest.raises(KeyboardInterrupt):
        first.train(progress=lambda label, done, total: _interrupt(done == 5))
    second = trainer(tmp_path / "parts", steps=6, every=2)
    second.resume()
    assert second.step == 4
    second.train()
    assert torch.equal(parameters(whole), parameters(second))


def _interrupt(now: bool) -> None:
    if now:
        raise KeyboardInterrupt


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path).train()
    shallow = trainer(tmp_path, student=model(num_hidden_layers=1))
    with pytest.raises(BundleError, match=r"checkpoint\.pt is damaged; add --restart"):
        shallow.resume()
