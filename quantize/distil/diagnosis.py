"""Find the tensor in which the first NaN or infinity occurred, for the message of a stopped run."""

from __future__ import annotations

import torch
from torch import Tensor

from edgedec.quantize.distil.objective import Objective
from edgedec.quantize.distil.torch_graph import TorchGraph

__all__ = ["find_culprit"]


def _bad_value(model: TorchGraph, ids: Tensor) -> str | None:
    """Return the name of the first value of a forward pass on ids [batch, n] that is not finite, or None."""
    order = [output for op in model.graph.operations for output in op.outputs]
    with torch.no_grad():
        _, values = model(ids, None, tuple(order))
    return next((name for name in order if not torch.isfinite(values[name]).all()), None)


def find_culprit(objective: Objective, ids: Tensor) -> str:
    """Describe the first tensor, value or gradient that is not finite, after a backward pass on ids [batch, n + 1]."""
    student = objective.student
    for name, tensor in student.tensors.items():
        if not torch.isfinite(tensor).all():
            return f"tensor {name} of the student is not finite"
    for role, model in (("student", student), ("teacher", objective.teacher)):
        if model is not None and (bad := _bad_value(model, ids[:, :-1])):
            return f"{bad} of the {role} is the first value that is not finite"
    for name, tensor in reversed(student.tensors.items()):  # gradients are computed from the last layer to the first
        if tensor.grad is not None and not torch.isfinite(tensor.grad).all():
            return f"the gradient of {name} is not finite"
    return "the loss itself is not finite"
