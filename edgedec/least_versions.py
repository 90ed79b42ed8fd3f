"""The least versions of the software that edgedec runs with on a board.

pyproject.toml states the same bounds for pip, and ``edgedec deploy`` checks a board against these. They are those of Ubuntu
22.04 with Kria-PYNQ (Python 3.10, NumPy 1.21.5, pynq 3.0.1) and of PYNQ 3.1 for Zynq-7000 (Python 3.10).
"""

from __future__ import annotations

__all__ = ["NUMPY", "PYNQ", "PYTHON", "SERVE_PYTHON", "dotted", "version_numbers"]

PYTHON = (3, 10)
SERVE_PYTHON = (3, 11)  # version that `edgedec serve` needs, for asyncio.timeout
NUMPY = (1, 21, 2)  # the first NumPy with wheels for Python 3.10, and the least that ml_dtypes accepts there
PYNQ = (3, 0, 1)


def dotted(version: tuple[int, ...]) -> str:
    """Return a version as text: ``dotted((3, 10))`` is ``"3.10"``."""
    return ".".join(map(str, version))


def version_numbers(text: str) -> tuple[int, ...]:
    """Return up to three numbers that a version begins with: ``version_numbers("1.21.5+dfsg")`` is ``(1, 21, 5)``.

    The result is empty if the text begins with no number.
    """
    numbers: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        numbers += [int(digits)] if digits else []
        if digits != part or len(numbers) == 3:
            break
    return tuple(numbers)
