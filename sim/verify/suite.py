"""What a suite of edgedec.sim.verify.suites is, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from edgedec.plugins import load, names
from edgedec.progress import Progress
from edgedec.sim.verify.coverage import Coverage

__all__ = ["Suite", "SuiteReport", "find", "known"]

_PACKAGE = "edgedec.sim.verify.suites"


@dataclass(frozen=True, kw_only=True)
class SuiteReport:
    """Members:
    what: one sentence: what was compared with what.
    compared: how many of what.
    figures: simulated figures, by name with unit.
    coverage: what cocotb benches saw; None if the suite has none that count.
    left_out: what ``quick`` left out; empty if nothing.
    """

    what: str
    compared: Mapping[str, int]
    figures: Mapping[str, Any] = field(default_factory=dict)
    coverage: Coverage | None = None
    left_out: str = ""


class Suite(Protocol):
    """A module of edgedec.sim.verify.suites."""

    def run(self, *, model: Path, quick: bool, progress: Progress) -> SuiteReport:
        """``model``: a bundle, for suites that need one. Raises an EdgedecError if anything differs."""


def known() -> list[str]:
    """Names of all suites."""
    return list(names(_PACKAGE))


def find(name: str) -> Suite:
    """Raises:
    UsageError: there is no such suite; lists those that there are.
    """
    suite: Suite = load(_PACKAGE, name)
    return suite
