"""A rough head in a program: what the host has to know to score the likeliest tokens again, and how it does that."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError, UsageError
from edgedec.graph.ops import Linear, RmsNorm
from edgedec.hw.compiler.results import Results
from edgedec.hw.config import AcceleratorConfig
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.ops.quantize_activation import codes_of
from edgedec.reference.integer_profile.rescoring import HeadRows, Rescored, Rescoring
from edgedec.reference.integer_profile.values import Logits
from edgedec.schemes import Int8Weight

__all__ = ["RoughFacts", "again", "again_whole", "rescoring_of", "rough_facts", "rough_norm"]

I64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class RoughFacts:
    """Facts of a rough head.

    Members:
        head: name of the weight whose int8 rows score tokens again.
        norm: name of the tapped norm from which the codes follow.
        code_unit: factor of the scales of the codes.
        exponent, pre_shift: constants of the int8 head in the integer profile: of its mantissas, and of its sums.
    """

    head: str
    norm: str
    code_unit: float
    exponent: int
    pre_shift: int


def _rough(model: IntegerModel) -> Linear | None:
    """Return the linear that is a rough head; None if there is none."""
    for op in model.graph.operations:
        if isinstance(op, Linear) and any(matrix.rough for matrix in model.constants[op.name].matrices):
            return op
    return None


def rough_norm(model: IntegerModel, config: AcceleratorConfig) -> tuple[str, ...]:
    """Return the name of the norm that a program with a rough head taps; nothing without such a head.

    Raises:
        UnsupportedError: the accelerator is not for a head of so many planes, or no norm is quantized for the head.
    """
    op = _rough(model)
    if op is None:
        return ()
    planes = len(model.constants[op.name].matrices[0].trits)
    if config.rough_head != planes:
        raise UnsupportedError(
            f"the head {op.name} is a rough one of {planes} planes; generate the accelerator with rough_head={planes}"
        )
    makers = {output: one for one in model.graph.operations for output in one.outputs}
    norm = makers[makers[op.inputs[0]].inputs[0]]
    if not isinstance(norm, RmsNorm):
        raise UnsupportedError(
            f"linear {op.name}: no norm makes {norm.outputs[0]}, from which a rough head's tokens would be scored again: "
            "leave out rough_head"
        )
    return (norm.outputs[0],)


def rough_facts(model: IntegerModel, config: AcceleratorConfig) -> RoughFacts | None:
    """Return the facts of a model's rough head; None if it has none."""
    op = _rough(model)
    rescoring: Rescoring | None = None if op is None else model.constants[op.name].rescoring
    if op is None or rescoring is None:
        return None
    (norm,), rows = rough_norm(model, config), rescoring.rows
    return RoughFacts(
        head=op.weights[0],
        norm=norm,
        code_unit=model.forms[op.inputs[1]].unit,
        exponent=rows.exponent,
        pre_shift=rows.pre_shift,
    )


def rescoring_of(
    facts: RoughFacts, head: Int8Weight | None, *, shape: tuple[int, int], candidates: int, rough_exponent: int
) -> Rescoring:
    """Return the second step of a program's rough head.

    Args:
        facts: the program's.
        head: the weight ``facts.head``.
        shape: rows and columns that it must have.
        candidates: tokens of a slot that the accelerator gives.
        rough_exponent: exponent of its logits.

    Raises:
        UsageError: there is no weight, or it has another shape.
    """
    if head is None or head.codes.shape != shape:
        found = "missing" if head is None else "x".join(map(str, head.codes.shape))
        raise UsageError(
            f"the program's head {facts.head} is {found}, and its int8 rows, {shape[0]}x{shape[1]}, score tokens again; "
            "give those of the bundle that it was compiled from"
        )
    rows = HeadRows.of(head, facts.code_unit, exponent=facts.exponent, pre_shift=facts.pre_shift)
    return Rescoring(rows=rows, candidates=candidates, rough_exponent=rough_exponent)


def _found(rescoring: Rescoring, rough: Results, norm: I64) -> Rescored:
    return rescoring.again(rough.ids, rough.logits, codes_of(norm.astype(np.int64))[0])


def again(rescoring: Rescoring, rough: Results, norm: I64, counted: int) -> Results:
    """Return results of rough logits after their tokens were scored again.

    Args:
        rescoring: the second step.
        rough: results of the accelerator.
        norm: product of the norm, s27 [r, width].
        counted: number of ids in the sums of exponentials.
    """
    found, exponent = _found(rescoring, rough, norm), rough.exponent - rescoring.coarser
    exact = replace(rough, ids=found.ids, logits=found.values, exponent=exponent)
    return replace(exact, sums=rescoring.sums(rough.sums, found, exact.integers, counted))


def again_whole(rescoring: Rescoring, rows: Logits, rough: Results, norm: I64) -> Logits:
    """Return whole rows of rough logits after the tokens of ``rough`` were scored again, with ``norm`` as in ``again``."""
    values = rescoring.whole(rows.values, _found(rescoring, rough, norm))
    return replace(rows, values=values, exponent=rows.exponent - rescoring.coarser)
