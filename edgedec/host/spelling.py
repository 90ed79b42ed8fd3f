"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

__all__ = ["did_you_mean", "must_be_one_of", "nearest"]

_ALIKE = 0.7  # least ratio of difflib: it is 0.75 for "cuad" and "cuda", and 0.67 for "gpu" and "cpu"
_LEAST_PREFIX = 3  # characters


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` probably means, or None if no known name is similar enough.

    Case is ignored, and "-" and "_" are equal. A name that is the beginning of exactly one known name means this name. So
    does one in which two neighbouring letters are swapped.
    """
    folded = {_fold(one): one for one in known}
    plain = _fold(name)
    longer = [one for one in folded if one.startswith(plain)]
    if plain in folded:
        return folded[plain]
    if len(plain) >= _LEAST_PREFIX and len(longer) == 1:
        return folded[longer[0]]
    matches = difflib.get_close_matches(plain, folded, n=1, cutoff=_ALIKE)
    matches = matches or [one for one in folded if len(one) > 1 and _swapped(plain, one)]
    return folded[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that refuses ``name``: "; did you mean 'cuda'?", or an empty text."""
    match = nearest(name, known)
    return "" if match is None else f"; did you mean {match!r}?"


def must_be_one_of(what: str, name: str, known: Collection[str]) -> str:
    """Return the message that refuses ``name``: "--format must be one of gguf, onnx, not 'onx'; did you mean 'onnx'?"."""
    return f"{what} must be one of {', '.join(known)}, not {name!r}{did_you_mean(name, known)}"


def _swapped(left: str, right: str) -> bool:
    """Return True if two neighbouring letters are swapped, and nothing else differs: "cup" and "cpu"."""
    differing = [at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]]
    return (
        len(left) == len(right)
        and len(differing) == 2
        and differing[1] == differing[0] + 1
        and left[differing[0]] == right[differing[1]]
        and left[differing[1]] == right[differing[0]]
    )


def _fold(name: str) -> str:
    return name[:200].lower().replace("_", "-")
