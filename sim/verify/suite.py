"""The interface of the suites in edgedec.sim.verify.suites, and their reports."""

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
    """The result of a suite.

    Members:
        what: sentence that names the two compared sides.
        compared: number of comparisons by kind.
        figures: figures by name, which ends in the unit.
        kind: kind of the figures, which is printed with them: "simulated" by the RTL, or "modelled" without it.
        coverage: coverage of cocotb benches; None if the suite does not count it.
        left_out: description of the cases that ``quick`` left out; empty if there are none.
    """

    what: str
    compared: Mapping[str, int]
    figures: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "simulated"
    coverage: Coverage | None = None
    left_out: str = ""


class Suite(Protocol):
    """A module of edgedec.sim.verify.suites."""

    def run(self, *, model: Path, quick: bool, progress: Progress) -> SuiteReport:
        """Run the suite.

        Args:
            model: a bundle, for suites that need one.
            quick: leave out the cases that take long.

        Raises:
            EdgedecError: a comparison fails.
        """


def known() -> list[str]:
    """Return the names of all suites, sorted."""
    return list(names(_PACKAGE))


def find(name: str) -> Suite:
    """Return the suite of this name.

    Raises:
        UsageError: the name is unknown; the message lists the known ones.
    """
    suite: Suite = load(_PACKAGE, name)
    return suite
