"""Compute the loss of a student from the text, the teacher's predictions and the teacher's hidden states.

Source: 1503.02531 for logits, 1910.01108 and BitDistill (2510.13998) for hidden states in addition.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.errors import UnsupportedError, UsageError
from edgedec.quantize.distil.torch_graph import TorchGraph

__all__ = ["Objective", "ObjectiveOptions", "layer_pairs", "text_loss"]

_ROWS_AT_ONCE = 4
_LEAST_SQUARE = 1e-12


@dataclass(frozen=True, kw_only=True)
class ObjectiveOptions:
    """Weights of the three losses.

    ``text`` is the cross-entropy on the text, ``logits`` the divergence from the teacher's distribution, and ``hidden`` the
    distance from the teacher's hidden states.
    """

    text: float = 0.2
    logits: float = 0.8
    hidden: float = 0.2

    def __post_init__(self) -> None:
        for name, value in (("text", self.text), ("logits", self.logits), ("hidden", self.hidden)):
            if not 0 <= value < 1e6:
                raise UsageError(f"--{name}-weight must be at least 0 and below 1e6, not {value}")
        if self.text + self.logits == 0:
            raise UsageError("--text-weight and --logits-weight must not both be 0, or the head would not be trained")


def _layer_outputs(model: TorchGraph) -> list[str]:
    """Return the names of the residual stream's values after each layer."""
    return [name for name in model.graph.values if name.startswith("layers.") and name.endswith(".out")]


def layer_pairs(student: int, teacher: int) -> list[tuple[int, int]]:
    """Return pairs (student layer, teacher layer) at the same share of the depth.

    The last layers form a pair. Each layer of the shallower model is used once.
    """
    fewer = min(student, teacher)
    return [((at + 1) * student // fewer - 1, (at + 1) * teacher // fewer - 1) for at in range(fewer)]


class Objective(nn.Module):
    """``forward(ids [batch, n + 1])`` gives the loss and, detached, the cross-entropy on the text, in nats per token.

    Hidden states are compared, token by token, by their squared distance relative to the teacher's square. If the widths
    differ, a linear map from the student's states to the teacher's is trained with the student and dropped at the end.

    Raises:
        UnsupportedError: the vocabularies differ.
    """

    def __init__(self, student: TorchGraph, teacher: TorchGraph | None, options: ObjectiveOptions) -> None:
        super().__init__()
        self.student, self.options = student, options
        self._teacher = [teacher]  # in a list, so that its parameters do not become parameters of this module
        self.pairs: list[tuple[str, str]] = []
        self.maps = nn.ModuleList()
        if teacher is None:
            return
        mine, its = (model.graph.values[model.graph.outputs[0]].shape[1] for model in (student, teacher))
        if mine != its:
            raise UnsupportedError(f"the student has {mine} logits, the teacher {its}; they must share a vocabulary")
        if not options.hidden:
            return
        ours, theirs = _layer_outputs(student), _layer_outputs(teacher)
        self.pairs = [(ours[a], theirs[b]) for a, b in layer_pairs(len(ours), len(theirs))]
        narrow, wide = (int(m.graph.values[names[0]].shape[1]) for m, names in ((student, ours), (teacher, theirs)))
        if narrow != wide:
            generator = torch.Generator().manual_seed(0)
            for _ in self.pairs:
                line = nn.Linear(narrow, wide, bias=False)
                nn.init.normal_(line.weight, std=narrow**-0.5, generator=generator)
                self.maps.append(line)

    @property
    def teacher(self) -> TorchGraph | None:
        return self._teacher[0]

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        seen, following = ids[:, :-1], ids[:, 1:].flatten()
        logits, ours = self.student(seen, None, tuple(a for a, _ in self.pairs))
        logits = logits.float().flatten(0, 1)
        text = functional.cross_entropy(logits, following)
        teacher = self.teacher
        if teacher is None:
            return text, text.detach()
        with torch.no_grad():
            target, theirs = teacher(seen, None, tuple(b for _, b in self.pairs))
            target = functional.log_softmax(target.float().flatten(0, 1), -1)
        loss = self.options.text * text
        if self.options.logits:
            likely = functional.log_softmax(logits, -1)
            loss = loss + self.options.logits * functional.kl_div(
                likely, target, reduction="batchmean", log_target=True
            )
        for at, (a, b) in enumerate(self.pairs):
            mine, target_state = ours[a].float(), theirs[b].float()
            mine = self.maps[at](mine) if self.maps else mine
            # The distance is relative for each token, so that the parts of a batch add up to the whole and no outlier token
            # dominates.
            distance = (mine - target_state).square().sum(-1) / target_state.square().sum(-1).clamp(min=_LEAST_SQUARE)
            loss = loss + self.options.hidden / len(self.pairs) * distance.mean()
        return loss, text.detach()


@torch.no_grad()
def text_loss(model: TorchGraph, rows: Tensor) -> float:
    """Return the mean cross-entropy on rows int64 [n, length + 1], in nats per token."""
    total = 0.0
    for some in rows.split(_ROWS_AT_ONCE):  # the logits of all rows together may take gigabytes
        logits, _ = model(some[:, :-1])
        total += len(some) * float(functional.cross_entropy(logits.float().flatten(0, 1), some[:, 1:].flatten()))
    return total / len(rows)
