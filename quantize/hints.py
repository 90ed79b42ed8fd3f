"""Sentences that tell what to do better: another method for this checkpoint, or for one whose quality is lost."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.errors import EdgedecError
from edgedec.quantize.methods.native import NotTernaryError, find_ternary
from edgedec.quantize.options import QuantizeOptions
from edgedec.quantize.readers.checkpoint import Maker, TernaryMaker
from edgedec.quantize.readers.safetensors_file import StoredTensor

__all__ = ["LOST_ERROR", "LOST_PERPLEXITY", "is_ternary", "lost_hint", "ternary_hint"]

LOST_PERPLEXITY = 1.5  # perplexity relative to the float model's from which a bundle counts as lost
# Error relative to the weights from which a bundle is suspected to be lost, if no perplexity is known. Gaussian weights in
# groups of 64 have 0.44 with one plane, 0.19 with two, and 0.1 with int4.
LOST_ERROR = 0.3

_LOSSLESS_SHARE = {"int8": "about a quarter", "int4": "about half"}  # share of the size that the method gives


def is_ternary(makers: Sequence[Maker]) -> bool:
    """Return whether all of some matrices are ternary. Of others, a few rows are read."""
    return bool(makers) and all(map(_is_ternary, makers))


def _is_ternary(make: Maker) -> bool:
    try:
        if isinstance(make, TernaryMaker):
            make.trits()
        else:
            find_ternary(make if isinstance(make, StoredTensor) else make())
    except (NotTernaryError, FloatingPointError, EdgedecError):  # a damaged tensor is named when it is quantized
        return False
    return True


def ternary_hint(source: object, options: QuantizeOptions) -> str:
    """Return the note about a checkpoint that is ternary, and is quantized otherwise.

    Args:
        source: the checkpoint's name.
    """
    share = _LOSSLESS_SHARE.get(options.method)
    return (
        f"{source}: this checkpoint is ternary; --method ternary without --planes takes the matrices of its layers "
        f"losslessly{f', at {share} of their size' if share else ''}"
    )


def lost_hint(
    options: QuantizeOptions, *, before: float | None, after: float | None, error: float | None
) -> str | None:
    """Return the warning about a bundle whose quality is lost, with the next steps; None if there is nothing to warn of.

    The perplexities decide if they were measured. Otherwise the error of the fitted matrices is a reason to suspect it.

    Args:
        before, after: perplexities of the float model and of the bundle.
        error: the ``relative_error`` of the report.
    """
    if before is not None and after is not None:
        if not after > LOST_PERPLEXITY * before:
            return None
        what = f"the perplexity rises from {before:.4g} to {after:.4g} ({100 * (after / before - 1):+,.0f} %)"
    elif error is not None and error > LOST_ERROR:
        what = (
            f"the stored matrices differ from the weights by {100 * error:.0f} %, so that this bundle probably writes "
            "nonsense; measure it with --eval-text FILE"
        )
    else:
        return None
    return f"{what}. {_next_steps(options)}"


def _next_steps(options: QuantizeOptions) -> str:
    if options.planes == 1:
        return (
            "One ternary plane suits models that were trained for it. Use --planes 2 or 3, or --method int4, or train a "
            "ternary student: edgedec distil CHECKPOINT -o STUDENT"
        )
    if options.method == "int8":
        return "Use --method float, and compare the checkpoint's files with those of its source"
    finer = "--planes 3 or " if options.planes == 2 else ""
    return f"Use {finer}--method int8, or calibrate on text of the model's kind: --calibration FILE"
