"""Find the memory budget of a run: the least of the flag, the limits of the control groups, and what the machine has.

A budget limits the bytes that a model adds to the process. So the room under the limit of a control group is what the group
does not use yet, this process included; clean page cache is not counted as used, because the kernel takes it back first.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from edgedec.memory.byte_sizes import format_bytes
from edgedec.memory.cgroups import cgroup_limits

__all__ = ["Budget", "MemoryLimit", "find_budget", "machine_memory"]

_LINE = re.compile(r"^(MemTotal|MemAvailable): +(\d{1,16}) kB$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """One limit of the memory of a run.

    Members:
        source: "flag", "cgroup" or "machine".
        name: the option, the file of the control group, or the machine's count.
        limit_bytes: the limit itself.
        used_bytes: bytes under this limit that are in use already and cannot be taken back at once; 0 for the flag.
    """

    source: Literal["flag", "cgroup", "machine"]
    name: str
    limit_bytes: int
    used_bytes: int = 0

    @property
    def room_bytes(self) -> int:
        """Bytes that a run may add under this limit."""
        return max(0, self.limit_bytes - self.used_bytes)

    def explain(self) -> str:
        """Return the limit as words."""
        if self.source == "flag":
            return self.name
        owner = "this control group" if self.source == "cgroup" else "the machine"
        return (
            f"{owner}, which has {format_bytes(self.limit_bytes)}, of which {format_bytes(self.used_bytes)} are in use "
            f"({self.name})"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the members, and the room."""
        return asdict(self) | {"room_bytes": self.room_bytes}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of the memory of a run.

    Members:
        limits: all limits that are known, the flag first, then the control groups, then the machine.
    """

    limits: tuple[MemoryLimit, ...]

    @property
    def bound_by(self) -> MemoryLimit | None:
        """The limit with the least room, the first of those with equally much; None if no limit is known."""
        return min(self.limits, key=lambda limit: limit.room_bytes, default=None)

    @property
    def has_flag(self) -> bool:
        """True if the user set a limit."""
        return any(limit.source == "flag" for limit in self.limits)

    @property
    def limited(self) -> bool:
        """True if the user or a control group sets a limit, so that runs are planned under it.

        The machine alone does not: its memory may be extended by swap, and other programs may give memory back.
        """
        return any(limit.source != "machine" for limit in self.limits)

    @property
    def budget_bytes(self) -> int | None:
        """Bytes that a run may add; None if neither the user nor a control group sets a limit."""
        bound = self.bound_by
        return bound.room_bytes if bound is not None and self.limited else None

    def explain(self) -> str:
        """Return the budget and what bounds it, as words."""
        bound = self.bound_by
        if bound is None or not self.limited:
            return "no memory budget: --memory-budget was not given, and no control group has a limit"
        return f"the memory budget is {format_bytes(bound.room_bytes)}, bounded by {bound.explain()}"

    def as_json(self) -> dict[str, Any]:
        """Return the budget, the source of the limit that bounds it, and all limits."""
        bound = self.bound_by
        return {
            "bytes": self.budget_bytes,
            "bound_by": bound.source if bound is not None and self.limited else None,
            "limits": [limit.as_json() for limit in self.limits],
        }


def machine_memory(root: Path = Path("/")) -> tuple[int, int] | None:
    """Return the machine's memory and how much of it is available, in bytes; None if the system does not say.

    Available is what programs can take without swapping, by the kernel's estimate; a system that does not estimate it is
    taken to have all of its memory available.
    """
    try:
        text = (root / "proc/meminfo").read_text("utf-8", "replace")
    except OSError:
        return None
    counts = {name: int(count) << 10 for name, count in _LINE.findall(text)}
    if "MemTotal" not in counts:
        return None
    total = counts["MemTotal"]
    return total, min(total, counts.get("MemAvailable", total))


def find_budget(flag_bytes: int | None = None, *, root: Path = Path("/")) -> Budget:
    """Return the budget of a run that begins now. Call it when the libraries are loaded, which are not part of a budget.

    Limits of control groups that are not less than the machine's memory are left out, because they limit nothing.

    Args:
        flag_bytes: the limit that the user set; None: none.
        root: folder that holds ``proc`` and the mounted groups, for tests.
    """
    limits = []
    if flag_bytes is not None:
        limits.append(MemoryLimit(source="flag", name="--memory-budget", limit_bytes=flag_bytes))
    machine = machine_memory(root)
    for limit in cgroup_limits(root):
        if machine is None or limit.limit_bytes < machine[0]:
            limits.append(
                MemoryLimit(
                    source="cgroup",
                    name=str(limit.file),
                    limit_bytes=limit.limit_bytes,
                    used_bytes=limit.used_bytes,
                )
            )
    if machine is not None:
        total, available = machine
        limits.append(
            MemoryLimit(source="machine", name="MemAvailable", limit_bytes=total, used_bytes=total - available)
        )
    return Budget(limits=tuple(limits))
