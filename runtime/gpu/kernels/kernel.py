"""A kernel: its complete WGSL, its buffers, and the number of workgroups that a pass dispatches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgedec.errors import EdgedecError

__all__ = ["MOST_BINDINGS", "MOST_GROUPS", "ONE", "Binding", "Count", "Groups", "Kernel", "spread"]

MOST_BINDINGS = 8  # storage buffers that every adapter gives a shader. Source: WebGPU's default limits
MOST_GROUPS = 65_535  # workgroups of one dimension. Source: as above


@dataclass(frozen=True, kw_only=True)
class Binding:
    """A storage buffer of a kernel. ``name`` is that of the variable in the source."""

    name: str
    access: Literal["read", "read_write"]


@dataclass(frozen=True, kw_only=True)
class Count:
    """The number ``(constant + rows * n + results * r) / divisor``, rounded up, of a pass of n rows and r result rows."""

    constant: int = 0
    rows: int = 0
    results: int = 0
    divisor: int = 1

    def __post_init__(self) -> None:
        if min(self.constant, self.rows, self.results) < 0 or self.divisor < 1:
            raise EdgedecError(f"a count of workgroups cannot be negative: {self}")

    def of(self, rows: int, results: int) -> int:
        """Return the number for a pass."""
        return -(-(self.constant + self.rows * rows + self.results * results) // self.divisor)


ONE = Count(constant=1)


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The numbers of workgroups of the three dimensions."""

    x: Count
    y: Count = ONE
    z: Count = ONE

    def of(self, rows: int, results: int) -> tuple[int, int, int]:
        """Return the numbers for a pass of ``rows`` rows and ``results`` result rows."""
        return self.x.of(rows, results), self.y.of(rows, results), self.z.of(rows, results)


def spread(groups: int, z: Count = ONE) -> Groups:
    """Return a constant number of workgroups along x, where y carries what exceeds the limit of a dimension.

    The number of a workgroup is ``x + y * MOST_GROUPS``; numbers of ``groups`` or more have no work.
    """
    return Groups(x=Count(constant=min(groups, MOST_GROUPS)), y=Count(constant=groups, divisor=MOST_GROUPS), z=z)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A compute shader with the entry point ``main``.

    Members:
        name: name of the builder.
        source: complete WGSL; ``bindings[i]`` is ``@group(0) @binding(i)``.
        bindings: the buffers; the first is the header of the pass.
        groups: workgroups of a dispatch.
    """

    name: str
    source: str
    bindings: tuple[Binding, ...]
    groups: Groups

    def __post_init__(self) -> None:
        if not 1 <= len(self.bindings) <= MOST_BINDINGS or self.bindings[0].name != "head":
            raise EdgedecError(f"{self.name}: needs 1 to {MOST_BINDINGS} buffers, of which the first is the header")
