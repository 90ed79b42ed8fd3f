"""Sizes in bytes as texts: how they are read and written."""

from __future__ import annotations

import re
import reprlib
from numbers import Integral

from edgedec.errors import UsageError

__all__ = ["check_budget_bytes", "format_bytes", "parse_bytes"]

_UNITS = {"": 1, "B": 1, **{f"{p}{s}": 1024 ** (i + 1) for i, p in enumerate("KMGT") for s in ("", "iB", "I")}}
_UNITS |= {f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")}


def check_budget_bytes(budget_bytes: int | None) -> None:
    """Check a budget that a caller from Python gives.

    Raises:
        UsageError: it is no whole number of bytes, such as a text with a unit.
    """
    if budget_bytes is not None and (isinstance(budget_bytes, bool) or not isinstance(budget_bytes, Integral)):
        raise UsageError(
            f"budget_bytes must be a whole number of bytes, such as 32 * 2**20, not {reprlib.repr(budget_bytes)}; "
            'edgedec.memory.byte_sizes.parse_bytes("32MiB") reads a text'
        )


def parse_bytes(text: str) -> int:
    """Return the bytes of "600MiB", "1.5G" or "24000000". K, M, G, T, KiB ... are powers of 1024; KB, MB ... of 1000.

    Raises:
        UsageError: the text is not a positive size.
    """
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*", text)
    units = {name.upper(): factor for name, factor in _UNITS.items()}
    count = 0
    if match:
        whole, _, decimals = match[1].partition(".")
        count = int(whole + decimals) * units.get(match[2].upper(), 0) // 10 ** len(decimals)
    if not count:
        raise UsageError(f"{text!r} is not a size; write for example 600MiB or 2GiB")
    return count


def format_bytes(count: int) -> str:
    """Return a number of bytes as text with a unit: "412.3 MiB"."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
