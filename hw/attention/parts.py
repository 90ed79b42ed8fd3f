"""The vectors of which attention is made, and the constants of its heads, as they are described to it."""

from amaranth.hdl import unsigned
from amaranth.lib import data

__all__ = ["KEYS", "QUERIES", "VALUES", "head_factor", "part"]

QUERIES, KEYS, VALUES = 0, 1, 2  # values of ``part.part``


def part(*, norms: bool = False) -> data.StructLayout:
    """Return the description of a vector.

    Args:
        norms: whether the path has a norm of heads.

    Members:
        part: QUERIES, KEYS or VALUES.
        rotate: the vector is rotated, and consists of whole heads.
        shift: shift of its codes.
        normed: its heads are normed; only with ``norms``.
    """
    return data.StructLayout(
        {"part": unsigned(2), "rotate": 1, "shift": unsigned(6), **({"normed": 1} if norms else {})}
    )


def head_factor() -> data.StructLayout:
    """Return the layout of a query head's c (``factor``) and sc (``shift``), which docs/integer-profile.md defines."""
    return data.StructLayout({"factor": unsigned(16), "shift": unsigned(6)})
