"""Suggestions for names that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

__all__ = ["did_you_mean", "must_be_one_of", "nearest"]

_ALIKE = 0.7  # difflib's ratio: "cuad" is as near to "cuda" as 0.75, "gpu" to "cpu" 0.67
_LEAST_PREFIX = 3  # characters


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` was probably meant to be, or None where none is near enough.

    Case does not count, and "-" and "_" are the same. A name that is the beginning of exactly one known name stands for it.
    """
    folded = {_fold(one): one for one in known}
    wanted = _fold(name)
    longer = [one for one in folded if one.startswith(wanted)]
    if wanted in folded:
        return folded[wanted]
    if len(wanted) >= _LEAST_PREFIX and len(longer) == 1:
        return folded[longer[0]]
    matches = difflib.get_close_matches(wanted, folded, n=1, cutoff=_ALIKE)
    return folded[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that refuses ``name``: "; did you mean 'cuda'?", or nothing where none is near."""
    match = nearest(name, known)
    return "" if match is None else f"; did you mean {match!r}?"


def must_be_one_of(what: str, name: str, known: Collection[str]) -> str:
    """Return the message that refuses ``name``: "--format must be one of gguf, onnx, not 'onx'; did you mean 'onnx'?"."""
    return f"{what} must be one of {', '.join(known)}, not {name!r}{did_you_mean(name, known)}"


def _fold(name: str) -> str:
    return name[:200].lower().replace("_", "-")
