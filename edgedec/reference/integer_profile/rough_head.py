"""The model with a rough head: a head in one or two planes of trits, whose likeliest tokens the int8 head scores again.

Whoever makes the planes gives them to ``with_rough_head``, and may fit them to ``head_codes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Linear
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.ops.linear import LinearConstants, rough_matrix
from edgedec.reference.integer_profile.rescoring import HeadRows, Rescoring
from edgedec.schemes import Int8Scheme, Int8Weight

__all__ = ["head_codes", "head_of", "with_rough_head"]

I32 = NDArray[np.int32]


def head_of(graph: Graph) -> Linear:
    """Return the linear that gives the logits, whose weight is int8.

    Raises:
        UnsupportedError: there is none, or its weight has another scheme; a ternary head has nothing that is scored again.
    """
    op = next((op for op in graph.operations if set(op.outputs) & set(graph.outputs)), None)
    if not isinstance(op, Linear) or len(op.outputs) > 1:
        raise UnsupportedError("the model's output is no linear's, so that it has no rough head: leave out rough_head")
    if not isinstance(op.schemes[0], Int8Scheme):
        raise UnsupportedError(
            f"linear {op.name}: {op.weights[0]} is {op.schemes[0].kind}, and a rough head is made of an int8 head, which "
            "scores its likeliest tokens again: leave out rough_head, or quantize the head as int8"
        )
    return op


def head_codes(model: IntegerModel, windows: Sequence[I32]) -> I64:
    """Return the codes that the head multiplies, s8 [n, width], of all ids of windows that are read from position 0."""
    name, kept = head_of(model.graph).inputs[0], list[I64]()

    def keep(value: str, integers: I64) -> None:
        if value == name:
            kept.append(integers)

    for ids in windows:
        model.open().forward(ids, trace=keep)
    return np.concatenate(kept)


def with_rough_head(
    model: IntegerModel, weight: Int8Weight, trits: NDArray[np.int8], scale: NDArray[np.float32], *, candidates: int
) -> IntegerModel:
    """Return the model with a rough head. ``forward`` gives whole rows after their candidates were scored again.

    Args:
        model: the model with its int8 head.
        weight: the weight of that.
        trits: int8 [planes, vocab, width]; the rough weight is (3 * trits[0] + trits[1]) * scale for two planes, and
            trits[0] * scale for one.
        scale: float32 [vocab], not negative.
        candidates: number of ids of each row that are scored again.

    Raises:
        UnsupportedError: see ``head_of``.
    """
    op = head_of(model.graph)
    code_unit, (exact,) = model.forms[op.inputs[1]].unit, model.constants[op.name].matrices
    rough = rough_matrix(op.outputs[0], trits, scale, code_unit)
    rows = HeadRows.of(weight, code_unit, exponent=exact.scale.exponent, pre_shift=exact.pre_shift)
    rescoring = Rescoring(rows=rows, candidates=candidates, rough_exponent=rough.logit_exponent)
    constants: LinearConstants = replace(model.constants[op.name], matrices=(rough,), rescoring=rescoring)
    return IntegerModel(model.graph, {**model.constants, op.name: constants}, model.forms)
