"""One step, many steps, and steps that go wrong."""

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
from edgedec.quantize.distil.trainer import Checked, Trainer
from tests.quantize.distil.support.make_teachers import CPU, model

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
    made = Trainer(
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
    return made


def parameters(made: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in made.objective.parameters()])


@pytest.mark.parametrize("parts", [2, 8])
def test_accumulated_parts_are_one_batch(tmp_path: Path, parts: int) -> None:
    """Another order of sums. Gradients, because Adam makes a full step of one that is all but zero."""
    found = []
    for count in (1, parts):
        made = trainer(tmp_path / str(count), accumulate=count, every=1)
        seen: list[Checked] = []
        made.train(tell=seen.append)
        made = trainer(tmp_path / f"{count} once", accumulate=count, steps=1)
        made.train()
        gradients: list[Any] = [p.grad for p in made.objective.parameters()]
        found.append((torch.cat([gradient.flatten() for gradient in gradients]), seen))
    (one, seen_one), (many, seen_many) = found
    assert (one - many).abs().max() < 1e-5 * one.abs().max()
    for ours, theirs in zip(seen_one, seen_many, strict=True):
        assert (ours.loss, ours.valid) == pytest.approx((theirs.loss, theirs.valid), rel=1e-3)


@pytest.mark.parametrize("ternary", [None, Ternary(), Ternary(group_size=32)])
def test_training_learns_the_text(tmp_path: Path, ternary: Ternary | None) -> None:
    """Against a teacher of noise the text alone is learnt: weights of the objective are the trainer's caller's business."""
    student = model(seed=1, ternary=ternary)
    made = trainer(tmp_path, student=student, steps=25, learning_rate=1e-2, every=5)
    made.objective.options = ObjectiveOptions(text=1, logits=0, hidden=0)
    seen: list[Checked] = []
    before = made.validate()
    made.train(tell=seen.append)
    assert [checked.step for checked in seen] == [5, 10, 15, 20, 25]
    assert seen[-1].valid < 0.6 * before
    assert seen[-1].valid == pytest.approx(made.validate(), rel=1e-6)
    assert all(checked.tokens_per_second > 0 and checked.seconds_left >= 0 for checked in seen)
    rows = made.folder.rows()
    assert [int(row["step"]) for row in rows] == [5, 10, 15, 20, 25]
    assert float(rows[-1]["valid"]) == pytest.approx(seen[-1].valid, abs=1e-5)


def test_the_line_of_a_validation() -> None:
    checked = Checked(step=50, loss=1.2345, text=1, valid=math.log(7), tokens_per_second=1234.5, seconds_left=75)
    assert checked.line(100) == "step 50/100  loss 1.234  held-out perplexity 7.00  1,234 tokens/s  1:15 to go"
    assert "perplexity 51847055285870720" in replace(checked, valid=1e9).line(100), "no OverflowError"


def test_gains_do_not_decay_and_matrices_stop_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(tmp_path, steps=4)
    seen = []
    step = made.optimizer.step

    def watched() -> None:
        seen.append([(group["weight_decay"], group["params"][0].ndim) for group in made.optimizer.param_groups])
        step()

    monkeypatch.setattr(made.optimizer, "step", watched)
    made.train()
    assert seen == 2 * [[(0.1, 2), (0.0, 1)]] + 2 * [[(0.0, 2), (0.0, 1)]]
    assert all(p.ndim == 1 for p in made.optimizer.param_groups[1]["params"])


def test_bfloat16_autocast_trains_float32_weights(tmp_path: Path) -> None:
    losses: dict[bool, list[Checked]] = {False: [], True: []}
    for autocast, seen in losses.items():
        made = trainer(tmp_path / str(autocast), student=model(seed=1, ternary=Ternary()), autocast=autocast, every=1)
        made.train(tell=seen.append)
        assert {p.dtype for p in made.objective.parameters()} == {torch.float32}
        assert _logits_type(made) == (torch.bfloat16 if autocast else torch.float32)
    for ours, theirs in zip(*losses.values(), strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=0.03)
        assert ours.loss != theirs.loss


def _logits_type(made: Trainer) -> torch.dtype:
    with made._autocast(), torch.no_grad():
        logits: torch.Tensor = made.objective.student(torch.from_numpy(made.batches.valid_rows()))[0]
    return logits.dtype


def test_only_whole_batches_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a validation are of another number, and each would be compiled for itself."""
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


def stopped(made: Trainer) -> str:
    with pytest.raises(EdgedecError) as caught:
        made.train()
    return str(caught.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_tensor_that_is_no_number_is_named(tmp_path: Path, bad: float) -> None:
    made = trainer(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    with torch.no_grad():
        made.objective.student.tensors[name][2, 3] = bad
    message = stopped(made)
    assert message.startswith(
        f"training stopped at step 0: tensor {name} of the student is not finite; no checkpoint yet."
    )
    assert "smaller --learning-rate (now 0.003) or --precision float32, with --restart" in message
    assert not made.folder.checkpoint.exists()


@pytest.mark.parametrize("whose", ["student", "teacher"])
def test_a_layer_that_overflows_is_named(tmp_path: Path, whose: str) -> None:
    models: dict[str, Any] = {"student": model(seed=1), "teacher": model()}
    with torch.no_grad():
        models[whose].tensors["model.layers.1.mlp.up_proj.weight"].fill_(1e38)
        models[whose].tensors["model.layers.1.post_attention_layernorm.weight"].fill_(10)
    message = stopped(trainer(tmp_path, **models))
    assert f"layers.1.up of the {whose} is the first value that is not finite" in message


def test_a_gradient_that_is_no_number_is_named(tmp_path: Path) -> None:
    """Clipping by a norm that is no number would make all of them none."""
    made = trainer(tmp_path)
    name = "model.layers.0.self_attn.o_proj.weight"
    tensor: Any = made.objective.student.tensors[name]
    tensor.register_hook(lambda gradient: gradient * math.nan)
    assert f"the gradient of {name} is not finite" in stopped(made)


def test_a_model_that_is_no_number_never_becomes_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(tmp_path, steps=4, every=2)
    step = made.optimizer.step

    def broken() -> None:
        step()
        if made.step == 3:  # the last step, whose loss was still a number
            with torch.no_grad():
                made.objective.student.tensors["model.norm.weight"][0] = math.nan

    monkeypatch.setattr(made.optimizer, "step", broken)
    message = stopped(made)
    assert "tensor model.norm.weight of the student is not finite" in message
    assert f"the last good checkpoint is {made.folder.checkpoint}" in message
    assert made.folder.load()["step"] == 2
    assert [row["step"] for row in made.folder.rows()] == ["2"]


# --- going on ---------------------------------------------------------------------------------------------------------


def test_resumed_steps_are_those_of_a_whole_run(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", steps=6, every=2)
    whole.train()
    first = trainer(tmp_path / "parts", steps=6, every=2)
    with pytest.raises(KeyboardInterrupt):
        first.train(progress=lambda what, done, total: _interrupt(done == 5))
    second = trainer(tmp_path / "parts", steps=6, every=2)
    second.resume()
    assert second.step == 4
    second.train()
    assert torch.equal(parameters(whole), parameters(second))


def _interrupt(now: bool) -> None:
    if now:
        raise KeyboardInterrupt


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    trainer(tmp_path).train()
    other = trainer(tmp_path, student=model(num_hidden_layers=1))
    with pytest.raises(BundleError, match=r"checkpoint\.pt is damaged; add --restart"):
        other.resume()
