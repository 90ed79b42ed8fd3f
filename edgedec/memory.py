"""Bytes: parsing them, measuring what this process is charged for, and planning under a budget.

*Charged* = growth of anonymous and shared memory since the meter was started, plus resident pages of mappings of the model's
files. Transients of loading count. The baseline (what the imports took before) and library text are reported beside it,
never in it. A run's peak is the largest value that its meter read, every few milliseconds and between phases.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from edgedec.errors import BudgetError, UsageError

__all__ = [
    "MemoryMeter",
    "MemoryUse",
    "Plan",
    "charged_bytes",
    "format_bytes",
    "largest_context",
    "parse_bytes",
    "phases",
    "resident_bytes",
]

_UNITS = {"": 1, "B": 1, **{f"{p}{s}": 1024 ** (i + 1) for i, p in enumerate("KMGT") for s in ("", "iB", "I")}}
_UNITS |= {f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")}
_PAGE = os.sysconf("SC_PAGE_SIZE")


def parse_bytes(text: str) -> int:
    """Bytes of "600MiB", "1.5G" or "24000000". K, M, G, T and KiB ... count 1024s; KB, MB ... count 1000s.

    Raises:
        UsageError: not a positive size.
    """
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*", text)
    units = {name.upper(): factor for name, factor in _UNITS.items()}
    count = int(Fraction(match[1]) * units.get(match[2].upper(), 0)) if match else 0
    if not count:
        raise UsageError(f"{text!r} is not a size; write for example 600MiB or 2GiB")
    return count


def format_bytes(count: int) -> str:
    """Bytes for people: "412.3 MiB"."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def _anonymous_bytes() -> int:
    """Anonymous and shared memory of this process, from ``smaps_rollup``."""
    text = Path("/proc/self/smaps_rollup").read_bytes()
    total = 0
    for key in (b"Anonymous", b"Pss_Shmem"):
        match = re.search(rb"^" + key + rb": +(\d+) kB", text, re.MULTILINE)
        total += int(match[1]) * 1024 if match else 0
    return total


def resident_bytes() -> int:
    """Return what this process has in memory, code of libraries that it shares with others included; 0 where unknown."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0


def _mapped_bytes(prefixes: tuple[bytes, ...]) -> int:
    """Resident pages of mappings whose file lies under one of ``prefixes``.

    ``maps`` lists the ranges, ``pagemap`` says which pages are present: far cheaper than ``smaps``, which walks every page
    of the process.
    """
    total = 0
    with Path("/proc/self/maps").open("rb") as maps, Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) < 6 or not fields[5].startswith(prefixes):
                continue
            start, stop = (int(part, 16) // _PAGE for part in fields[0].split(b"-"))
            pagemap.seek(start * 8)
            data = pagemap.read((stop - start) * 8)
            total += int(np.count_nonzero(np.frombuffer(data, "<u8") >> np.uint64(63)))  # bit 63: the page is present
    return total * _PAGE


class MemoryMeter:
    """Watches the charged bytes of this process from a thread, until closed.

    ``statm`` is read every 5 ms (20 microseconds); when it has moved by more than 64 KiB, and at every ``mark``, the exact
    figure is taken. Needs Linux; elsewhere every figure is 0 and ``available`` is False.

    Parameters:
        folders: the model's folders; mapped files below them are charged.
    """

    INTERVAL_S = 0.005
    _STEP_PAGES = (64 << 10) // _PAGE

    def __init__(self, folders: tuple[Path, ...] = ()) -> None:
        self.available = Path("/proc/self/smaps_rollup").exists() and Path("/proc/self/pagemap").exists()
        self._prefixes = tuple(os.fsencode(folder.resolve()) + b"/" for folder in folders)
        self.baseline_bytes = _anonymous_bytes() if self.available else 0
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="edgedec-memory", daemon=True)

    def start(self) -> None:
        if self.available:
            self._thread.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._thread.is_alive():
            self.mark()
            self._stop.set()
            self._thread.join()

    def charged_bytes(self) -> int:
        """Charged bytes now."""
        if not self.available:
            return 0
        return max(0, _anonymous_bytes() - self.baseline_bytes) + (
            _mapped_bytes(self._prefixes) if self._prefixes else 0
        )

    def mark(self) -> int:
        """Take the exact figure at a phase boundary and return it."""
        now = self.charged_bytes()
        with self._lock:
            self.peak_bytes = max(self.peak_bytes, now)
        return now

    def _watch(self) -> None:
        seen = 0
        while not self._stop.wait(self.INTERVAL_S):
            resident = int(Path("/proc/self/statm").read_bytes().split()[1])
            if abs(resident - seen) > self._STEP_PAGES:
                seen = resident
                self.mark()


# Of a target, or of the draft's behind ``draft_``: what its first pass and its cache bring, and what goes before them.
_RUNNING = frozenset({"kv", "logits", "activations", "workspace", "attention_bias", "attention_scores", "sampling"})
_LOADING = frozenset({"load_transient", "self_test"})
_DRAFT = "draft_"


def phases(items: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Which of a plan's items are there at once: "load", "load_draft" (of a draft model) and "run", in this order.

    A target is loaded before it has a cache; the draft model beside all that the target may take by then. What only
    loading holds is gone when tokens are written.
    """
    target = {name: size for name, size in items.items() if not name.startswith(_DRAFT)}
    draft = {name: size for name, size in items.items() if name.startswith(_DRAFT)}
    found = {"load": {name: size for name, size in target.items() if name not in _RUNNING}}
    if f"{_DRAFT}weights" in draft:
        found["load_draft"] = {name: size for name, size in target.items() if name not in _LOADING} | {
            name: size for name, size in draft.items() if name.removeprefix(_DRAFT) not in _RUNNING
        }
    found["run"] = {name: size for name, size in items.items() if name.removeprefix(_DRAFT) not in _LOADING}
    return found


def charged_bytes(items: Mapping[str, int]) -> int:
    """The most that is there at once: the sum of the largest phase."""
    return max(sum(phase.values()) for phase in phases(items).values())


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Of one of an accelerator's memories.

    Members:
        name: DRAM, CMA, BRAM, URAM.
        used_bytes: by this run. has_bytes: that there are for it; None if only the board can tell.
        source: of both figures: "data sheet", "estimated", "read from the system".
        hint: what to do if it does not fit.
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
class Plan:
    """What a run will be charged, item by item, in bytes.

    Members:
        items: all of them; which are there at once, ``phases`` says.
        total_bytes: of the largest phase.
        baseline_bytes: what Python and the libraries take beside it.
        draft_model: whether the drafter has a model.
        draft_tokens: guesses on a path at most; ``tree_nodes``: nodes of a tree, its root among them.
        pass_rows: of the widest pass.
        estimated_tokens_per_second: from bytes and a usual acceptance; not measured.
        fixed_baseline: itemised bytes, weights left out, of a run that plans nothing (context 1024, float16 keys and
            values, a tree of 64 nodes, whole float32 logits), load transients left out as well.
        speculation_from_bytes: the least budget at which speculation still pays, by estimate.
        memories: of an accelerator, which hold what ``items`` names, and what it keeps on the chip beside that.
        hint: the nearest setting that fits, if this does not.
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
    tree_nodes: int = 1
    pass_rows: int = 1
    estimated_tokens_per_second: float = 0.0
    fixed_baseline: Mapping[str, int] = field(default_factory=dict)
    speculation_from_bytes: int | None = None
    memories: tuple[MemoryUse, ...] = ()
    hint: str = ""

    @property
    def phases(self) -> dict[str, dict[str, int]]:
        """The items that are there at once, by phase."""
        return phases(self.items)

    @property
    def largest_phase(self) -> str:
        """The name of the one that the total is the sum of."""
        found = self.phases
        return max(found, key=lambda name: sum(found[name].values()))

    def require_memories(self) -> None:
        """Raises:
        BudgetError: one of the accelerator's memories is too small; names it and what to do.
        """
        for memory in self.memories:
            if not memory.fits:
                raise BudgetError(
                    f"needs {format_bytes(memory.used_bytes)} of {memory.name}, there are "
                    f"{format_bytes(memory.has_bytes or 0)} ({memory.source}); {memory.hint}"
                )

    def require(self) -> None:
        """Raises:
        BudgetError: it does not fit; itemised, with the nearest setting that does.
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
    """The largest context in ``low``..``high`` whose footprint (bytes, growing with the context) fits; None if none does."""
    if footprint(low) > budget_bytes:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if footprint(middle) <= budget_bytes else (low, middle - 1)
    return low
