"""The planned memory of a run: its items, the phases in which they exist, and whether they fit a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from edgedec.errors import BudgetError
from edgedec.memory.byte_sizes import format_bytes
from edgedec.memory.items import DRAFT, memory_item

__all__ = ["DiskUse", "MemoryUse", "Plan", "charged_bytes", "largest_context", "phases"]


def phases(items: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the items of a plan by phase: "load", "load_draft" (with a draft model) and "run", in this order.

    The items of a phase exist at the same time. A target is loaded before it has a cache, and a draft model is loaded while
    the target exists. Transient memory of loading is free when tokens are generated.
    """
    target = {name: size for name, size in items.items() if not name.startswith(DRAFT)}
    draft = {name: size for name, size in items.items() if name.startswith(DRAFT)}
    by_phase = {"load": _in("load", target)}
    if "draft_weights" in draft:
        by_phase["load_draft"] = _in("run", target) | _in("load", draft)
    by_phase["run"] = _in("run", items)
    return by_phase


def _in(phase: Literal["load", "run"], items: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in items.items() if phase in memory_item(name).phases}


def charged_bytes(items: Mapping[str, int]) -> int:
    """Return the sum of the largest phase."""
    return max(sum(phase.values()) for phase in phases(items).values())


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """The use of one of an accelerator's memories, or of a disk.

    Members:
        name: DRAM, CMA, u-dma-buf (all, and the largest buffer), BRAM, URAM, or the folder on the disk.
        used_bytes: bytes that the run uses.
        has_bytes: bytes that are available; None if only the board can tell.
        source: source of both figures: "data sheet", "estimated" or "read from the system".
        hint: next step if the run does not fit.
    """

    name: str
    used_bytes: int
    has_bytes: int | None
    source: str
    hint: str = "use a smaller model or --ctx-size"

    @property
    def fits(self) -> bool:
        return self.has_bytes is None or self.used_bytes <= self.has_bytes


@dataclass(frozen=True, kw_only=True)
class DiskUse:
    """The part of a model that each pass reads from the disk, because memory has no room for it.

    Members:
        bytes_per_pass: bytes of a pass.
        bytes_per_second: rate of the disk, measured by a short reading when the plan was made.
        direct: True if the system's page cache takes no part; False if the file system cannot be read without it.
        pass_seconds: estimated seconds of a pass by number of rows: those of the disk, or of the computation if it takes
            longer.
    """

    bytes_per_pass: int
    bytes_per_second: float
    direct: bool
    pass_seconds: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The planned charged bytes of a run, by item.

    Members:
        fits: True if the run fits the budget.
        items: bytes of each item; ``phases`` tells which of them exist at the same time.
        total_bytes: sum of the largest phase.
        baseline_bytes: memory of Python and the libraries, which is not part of the total.
        driver_bytes: memory of a GPU's driver, measured when it was opened for the first time; not part of it, either.
        draft_model: True if the drafter has a model.
        draft_tokens: largest number of guesses on a path.
        tree: policy of its trees; empty if the decoder makes no guesses.
        tree_nodes: nodes of a tree, including its root.
        pass_rows: rows of the widest pass.
        estimated_tokens_per_second: speed, computed from bytes and a usual acceptance; not measured.
        fixed_baseline: bytes by item, without weights and transient memory of loading, of a run that plans nothing (context
            1024, float16 keys and values, a tree of 64 nodes, whole float32 logits).
        speculation_from_bytes: estimate of the smallest budget at which speculation is faster.
        memories: use of an accelerator's memories, which hold the items and the data on the chip, or of a disk with values.
        hint: nearest setting that fits, if this one does not.
        notes: sentences about the items.
        disk: weights that are read from the disk in each pass; None: all of them are in memory.
        kv_policy: policy of keys and values; "full": every query attends to all keys that it sees.
        whole_ctx_size, whole_kv_bits: context and bits of keys and values that a run without a budget would have.
    """

    fits: bool
    budget_bytes: int | None
    total_bytes: int
    items: Mapping[str, int]
    baseline_bytes: int
    ctx_size: int
    kv_bits: int
    drafter: str
    draft_tokens: int
    draft_model: bool = False
    tree: str = ""
    tree_nodes: int = 1
    pass_rows: int = 1
    estimated_tokens_per_second: float = 0.0
    fixed_baseline: Mapping[str, int] = field(default_factory=dict)
    speculation_from_bytes: int | None = None
    memories: tuple[MemoryUse, ...] = ()
    hint: str = ""
    driver_bytes: int = 0
    notes: tuple[str, ...] = ()
    disk: DiskUse | None = None
    kv_policy: str = "full"
    whole_ctx_size: int = 0
    whole_kv_bits: int = 0

    @property
    def reduced(self) -> str:
        """Say which context and bits of keys and values the budget has left, if either is less than without it."""
        parts = []
        if self.ctx_size < self.whole_ctx_size:
            parts.append(f"the context is {self.ctx_size} tokens ({self.whole_ctx_size} without a budget)")
        if self.kv_bits < self.whole_kv_bits:
            parts.append(f"keys and values have {self.kv_bits} bits ({self.whole_kv_bits} without a budget)")
        return " and ".join(parts)

    @property
    def phases(self) -> dict[str, dict[str, int]]:
        """Items of each phase, which exist at the same time."""
        return phases(self.items)

    @property
    def largest_phase(self) -> str:
        """Name of the phase whose sum is the total."""
        phases = self.phases
        return max(phases, key=lambda name: sum(phases[name].values()))

    def require_memories(self) -> None:
        """Check the memories of the accelerator.

        Raises:
            BudgetError: a memory is too small; the message names it and the next step.
        """
        for memory in self.memories:
            if not memory.fits:
                raise BudgetError(
                    f"needs {format_bytes(memory.used_bytes)} of {memory.name}, which has "
                    f"{format_bytes(memory.has_bytes or 0)} ({memory.source}); {memory.hint}"
                )

    def require(self) -> None:
        """Check that the plan fits.

        Raises:
            BudgetError: it does not; the message has the items and the nearest setting that fits.
        """
        self.require_memories()
        if self.fits or self.budget_bytes is None:
            return
        phase = self.largest_phase
        when = {"load": " while loading", "load_draft": " while loading the draft model"}.get(phase, "")
        table = "\n".join(f"  {format_bytes(size):>12}  {name}" for name, size in self.phases[phase].items() if size)
        raise BudgetError(
            f"needs {format_bytes(self.total_bytes)} at context {self.ctx_size}{when}, "
            f"the memory budget is {format_bytes(self.budget_bytes)}:\n{table}\n{self.hint}"
        )


def largest_context(footprint: Callable[[int], int], *, low: int, high: int, budget_bytes: int) -> int | None:
    """Return the largest context in ``low``..``high`` whose footprint fits, or None.

    Args:
        footprint: returns the bytes for a context; they must not decrease with the context.
    """
    if footprint(low) > budget_bytes:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if footprint(middle) <= budget_bytes else (low, middle - 1)
    return low
