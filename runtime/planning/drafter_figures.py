"""Read what plans assume of each drafter, from a file that ``benchmarks/speculation/estimates.py`` measures and writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from edgedec.errors import EdgedecError
from edgedec.host.install_hint import install_again

__all__ = ["FIGURES", "UNMEASURED", "DrafterFigures", "drafter_figures", "read_figures"]

FIGURES = Path(__file__).with_name("drafters.json")
_MEMBERS = {"acceptance", "guess_microseconds"}


@dataclass(frozen=True, kw_only=True)
class DrafterFigures:
    """The measured figures of a drafter.

    Members:
        acceptance: share of right guesses, 0 to 1, on the kind of text where it is largest. Who asks for a drafter has texts
            that suit it, and a plan that expects less would leave it no memory.
        guess_seconds: seconds of a guess; without those in which a draft model reads its bytes.
    """

    acceptance: float
    guess_seconds: float


# The figures of drafters that are not in the file, such as plug-ins. Their rounds run in Python: the seconds are about those
# of a guess from the text alone there.
UNMEASURED = DrafterFigures(acceptance=0.35, guess_seconds=50e-6)


def read_figures(path: Path) -> dict[str, DrafterFigures]:
    """Return the figures in a file by drafter.

    Raises:
        EdgedecError: the file cannot be read, or does not have the form that the benchmark writes.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        if set(data) != {"measured", "drafters"} or not data["drafters"]:
            raise ValueError("its members must be measured and drafters")
        return {name: _figures(name, one) for name, one in data["drafters"].items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise EdgedecError(f"{path}: the figures of drafters cannot be read: {error}; {install_again()}") from error


def _figures(name: str, data: Mapping[str, Any]) -> DrafterFigures:
    if set(data) != _MEMBERS:
        raise ValueError(f"{name} must have the members {' and '.join(sorted(_MEMBERS))}, not {', '.join(data)}")
    shares, microseconds = list(data["acceptance"].values()), data["guess_microseconds"]
    for value, most in (*((share, 1.0) for share in shares), (microseconds, 1e6)):
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
            raise ValueError(f"{name} has the value {value!r} where 0 to {most:g} is expected")
    if not shares:
        raise ValueError(f"{name} has no acceptance")
    return DrafterFigures(acceptance=max(shares), guess_seconds=1e-6 * microseconds)


@cache
def _installed() -> dict[str, DrafterFigures]:
    return read_figures(FIGURES)


def drafter_figures(name: str) -> DrafterFigures:
    """Return the figures of a drafter; ``UNMEASURED`` if the file does not have it.

    Raises:
        EdgedecError: the file is damaged.
    """
    return _installed().get(name, UNMEASURED)
