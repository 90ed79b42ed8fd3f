"""Test the three losses, and which layers are compared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch
from torch.nn import functional

from edgedec.errors import UnsupportedError, UsageError
from edgedec.quantize.distil.objective import Objective, ObjectiveOptions, layer_pairs, text_loss
from edgedec.quantize.distil.torch_graph import Ternary
from tests.quantize.distil.support.make_teachers import model, some_ids

pytestmark = pytest.mark.compare

layers = st.integers(1, 40)


@given(layers, layers)
def test_layers_are_paired_at_the_same_depth(student: int, teacher: int) -> None:
    pairs = layer_pairs(student, teacher)
    fewer = min(student, teacher)
    assert len(pairs) == fewer
    assert pairs[-1] == (student - 1, teacher - 1)
    for side, count in ((0, student), (1, teacher)):
        layers_used = [pair[side] for pair in pairs]
        assert layers_used == sorted(set(layers_used)), "each once, in order"
        assert all(abs((at + 1) / fewer - (layers_used[at] + 1) / count) < 1 / count for at in range(fewer))


def test_layer_pairs_of_known_sizes() -> None:
    assert layer_pairs(2, 6) == [(0, 2), (1, 5)]
    assert layer_pairs(4, 2) == [(1, 0), (3, 1)]


def test_a_copy_of_the_teacher_has_nothing_to_learn_from_it() -> None:
    ids = some_ids()
    loss, text = Objective(model(), model(), ObjectiveOptions(text=0, logits=1, hidden=1))(ids)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    assert float(text) > 1
    assert not text.requires_grad


def test_the_loss_is_the_weighted_sum_of_three() -> None:
    student, teacher, ids = model(seed=1), model(), some_ids()
    weights = ObjectiveOptions(text=0.3, logits=0.5, hidden=0.7)
    loss, text = Objective(student, teacher, weights)(ids)
    inputs, targets, taps = ids[:, :-1], ids[:, 1:], ("layers.0.out", "layers.1.out")
    mine, ours = student(inputs, None, taps)
    its, theirs = teacher(inputs, None, taps)
    want_text = functional.cross_entropy(mine.flatten(0, 1), targets.flatten())
    probabilities = its.softmax(-1)
    divergence = (probabilities * (probabilities.log() - mine.log_softmax(-1))).sum(-1).mean()
    hidden = sum((((ours[tap] - theirs[tap]) ** 2).sum(-1) / (theirs[tap] ** 2).sum(-1)).mean() for tap in taps) / 2
    want = 0.3 * want_text + 0.5 * divergence + 0.7 * hidden
    assert float(text) == pytest.approx(float(want_text.detach()), rel=1e-5)
    assert float(loss.detach()) == pytest.approx(float(want.detach()), rel=1e-5)
    loss.backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert all(p.grad is not None for p in student.parameters())


def test_a_narrow_student_gets_trained_maps() -> None:
    narrow = model(hidden_size=16, num_hidden_layers=1)
    objective = Objective(narrow, model(), ObjectiveOptions())
    maps: Any = objective.maps
    assert [tuple(line.weight.shape) for line in maps] == [(32, 16)]
    objective(some_ids())[0].backward()
    assert all(p.grad is not None for p in objective.parameters())
    repeated: Any = Objective(model(hidden_size=16), model(), ObjectiveOptions()).maps
    assert torch.equal(repeated[0].weight, maps[0].weight), "not from the global generator"
    assert not Objective(narrow, model(), ObjectiveOptions(hidden=0)).maps


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="the student has 260 logits, the teacher 264; they must share"):
        Objective(model(vocab_size=260), model(), ObjectiveOptions())


def test_without_a_teacher_the_loss_is_that_of_the_text() -> None:
    ids = some_ids()
    loss, text = Objective(model(), None, ObjectiveOptions())(ids)
    assert loss.requires_grad
    assert float(loss.detach()) == float(text)


def test_the_whole_objective_can_be_compiled() -> None:
    """Compile one graph without inductor, which needs a compiler and a minute."""
    objective = Objective(
        model(ternary=Ternary(group_size=32)), model(seed=1).requires_grad_(False), ObjectiveOptions()
    )
    compiled: Any = torch.compile(objective, backend="aot_eager", fullgraph=True)
    gradients = []
    for run in (objective, compiled):
        loss, _ = run(some_ids())
        loss.backward()
        gradients.append([p.grad for p in objective.parameters()])
        objective.zero_grad(set_to_none=True)
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_text_loss_is_the_mean_over_all_rows() -> None:
    """Compute six rows as four and two."""
    student, ids = model(), some_ids(6)
    logits = student(ids[:, :-1])[0].detach()
    want = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    assert text_loss(student, ids) == pytest.approx(float(want), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": -1.0}, "--text-weight must be at least 0 and below 1e6, not -1.0"),
        ({"hidden": float("nan")}, "--hidden-weight must be at least 0 and below 1e6, not nan"),
        ({"text": 0.0, "logits": 0.0}, "--text-weight and --logits-weight must not both be 0"),
    ],
)
def test_impossible_weights_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ObjectiveOptions(**options)
