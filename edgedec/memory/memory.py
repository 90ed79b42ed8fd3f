"""Parse sizes in bytes, measure the charged bytes of this process, and represent plans under a budget.

Charged bytes are the growth of anonymous and shared memory since the meter was started, plus the resident pages of mappings
of the model's files. Transient memory of loading counts. The baseline (memory of the imports) and the code of libraries are
reported separately. The heap is trimmed before the baseline is read: otherwise pages that imports have freed belong to it,
the model takes them first, and is charged that much too little (5 to 7 MiB were measured). The peak of a run is the largest
value that its meter read, every few milliseconds and between phases.
"""

from __future__ import annotations

import gc
import os
import re
import reprlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from edgedec.errors import BudgetError, UsageError
from edgedec.memory.heap import trim_heap

__all__ = [
    "WEIGHT_ITEMS",
    "DiskUse",
    "MemoryMeter",
    "MemoryUse",
    "Plan",
    "charged_bytes",
    "check_budget_bytes",
    "format_bytes",
    "largest_context",
    "mapped_bytes",
    "parse_bytes",
    "phases",
    "resident_bytes",
]

_UNITS = {"": 1, "B": 1, **{f"{p}{s}": 1024 ** (i + 1) for i, p in enumerate("KMGT") for s in ("", "iB", "I")}}
_UNITS |= {f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")}
_PAGE = os.sysconf("SC_PAGE_SIZE")


def check_budget_bytes(budget_bytes: int | None) -> None:
    """Check a budget that a caller from Python gives.

    Raises:
        UsageError: it is no whole number of bytes, such as a text with a unit.
    """
    if budget_bytes is not None and (isinstance(budget_bytes, bool) or not isinstance(budget_bytes, Integral)):
        raise UsageError(
            f"budget_bytes must be a whole number of bytes, such as 32 * 2**20, not {reprlib.repr(budget_bytes)}; "
            'edgedec.memory.memory.parse_bytes("32MiB") reads a text'
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


def _anonymous_bytes() -> int:
    """Return the anonymous and shared memory of this process in bytes, from ``smaps_rollup``."""
    text = Path("/proc/self/smaps_rollup").read_bytes()
    total = 0
    for key in (b"Anonymous", b"Pss_Shmem"):
        match = re.search(rb"^" + key + rb": +(\d+) kB", text, re.MULTILINE)
        total += int(match[1]) * 1024 if match else 0
    return total


def _lasting_bytes() -> int:
    """Return the anonymous memory of this process without what the heap has free, which is given back to the system."""
    trim_heap()
    return _anonymous_bytes()


def resident_bytes() -> int:
    """Return the resident bytes of this process, including shared code of libraries; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0


def _file_prefixes(folders: tuple[Path, ...]) -> tuple[bytes, ...]:
    """Return what the paths of all files under ``folders`` begin with, as ``/proc/self/maps`` shows them."""
    return tuple(os.fsencode(folder.resolve()) + b"/" for folder in folders)


def mapped_bytes(folders: tuple[Path, ...]) -> int:
    """Return the resident bytes of this process's mappings of files under one of ``folders``. This needs Linux."""
    return _mapped_bytes(_file_prefixes(folders))


def _mapped_bytes(prefixes: tuple[bytes, ...]) -> int:
    """Return the resident bytes of mappings whose file begins with one of ``prefixes``.

    ``maps`` lists the ranges, and ``pagemap`` tells which pages are present. This is much faster than ``smaps``, which
    visits every page of the process.
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


class _Watched:
    """A context that threads enter while they work. It tells how long none was in it, and waits for the next one."""

    def __init__(self) -> None:
        self._entered = threading.Condition()
        self._inside = 0  # threads, each as often as it has entered
        self._left = time.monotonic()  # time of the last end of a block

    def __enter__(self) -> None:
        with self._entered:
            self._inside += 1
            if self._inside == 1:
                self._entered.notify_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._entered:
            self._inside -= 1
            self._left = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last block; 0 within one."""
        return 0.0 if self._inside else time.monotonic() - self._left

    def wait(self, stop: threading.Event) -> None:
        """Wait until a thread is within a block, or ``stop`` is set and ``wake`` was called."""
        with self._entered:
            self._entered.wait_for(lambda: self._inside or stop.is_set())

    def wake(self) -> None:
        """Let a thread in ``wait`` look at its event."""
        with self._entered:
            self._entered.notify_all()


class MemoryMeter:
    """Measure the charged bytes of this process in a thread, until the meter is closed.

    ``statm`` is read every 5 ms, which takes 20 microseconds. If it has changed by more than 64 KiB, and at every ``mark``,
    the exact figure is computed. That visits every resident page, 10 ms for some hundred megabytes, so the thread then rests
    four times as long: while a large model is loaded, it would otherwise take most of a core from the loading. After
    ``rest`` the thread sleeps outside of the blocks of ``watched``, so that a process that waits for work costs nothing. It
    reads on for ``LINGER_S`` after each block, so that short blocks do not wake it again and again. This needs Linux;
    elsewhere every figure is 0, and ``available`` is False.

    Parameters:
        folders: the model's folders; mapped files in them are charged.

    Members:
        watched: a context for work that takes memory. Several threads may be within it, and it may be nested.
        baseline_bytes: memory of the process that is not charged.
        left_out_bytes: the part of it that ``leave_out`` has added.
        peak_bytes, measured_bytes: the largest figure so far, and the last one.
        high_bytes: figure above which what the heap has free is given back to the system, and then unreachable objects are
            looked for, at most once a second; 0: never.
    """

    INTERVAL_S = 0.005
    LINGER_S = 0.1  # seconds for which the thread reads on after a block
    _STEP_PAGES = (64 << 10) // _PAGE
    _REST = 4  # rest after a measurement, as a multiple of its CPU time
    _RELIEF_S = 1.0  # least seconds from one relief to the next

    def __init__(self, folders: tuple[Path, ...] = ()) -> None:
        self.available = Path("/proc/self/smaps_rollup").exists() and Path("/proc/self/pagemap").exists()
        self._prefixes = _file_prefixes(folders)
        self.baseline_bytes = _lasting_bytes() if self.available else 0
        self.left_out_bytes = 0
        self.peak_bytes = self.measured_bytes = self.high_bytes = 0
        self._relieved = float("-inf")  # time of the last relief, in seconds of ``time.monotonic``
        self.watched = _Watched()
        self._rests = False
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

    def rest(self) -> None:
        """Measure within the blocks of ``watched`` alone from now on."""
        self._rests = True

    def close(self) -> None:
        if self._thread.is_alive():
            self.mark()
            self._stop.set()
            self.watched.wake()
            self._thread.join()

    def charged_bytes(self) -> int:
        """Return the present charged bytes."""
        if not self.available:
            return 0
        return max(0, _anonymous_bytes() - self.baseline_bytes) + (
            _mapped_bytes(self._prefixes) if self._prefixes else 0
        )

    def mark(self) -> int:
        """Measure the charged bytes at the end of a phase, and return them."""
        with self._lock:
            self.measured_bytes = now = self.charged_bytes()
            self.peak_bytes = max(self.peak_bytes, now)
            if 0 < self.high_bytes < now and time.monotonic() >= self._relieved + self._RELIEF_S:
                self.measured_bytes = now = self._relieve()
        return now

    def _relieve(self) -> int:
        """Give free memory back to the system until the figure is low, and return it."""
        trim_heap()
        if (now := self.charged_bytes()) > self.high_bytes:
            gc.collect()
            trim_heap()
            now = self.charged_bytes()
        self._relieved = time.monotonic()
        return now

    def leave_out(self, load: Callable[[], object]) -> int:
        """Call ``load``. What it leaves in the memory of the process belongs to the baseline, and is not charged.

        Returns:
            These bytes.
        """
        with self._lock:
            before = _lasting_bytes() if self.available else 0
            load()
            added = max(0, _lasting_bytes() - before) if self.available else 0
            self.baseline_bytes += added
            self.left_out_bytes += added
        return added

    def _watch(self) -> None:
        seen, rest_s = 0, self.INTERVAL_S
        while not self._stop.wait(rest_s):
            rest_s = self.INTERVAL_S
            if self._rests and self.watched.idle_s > self.LINGER_S:
                self.watched.wait(self._stop)
            resident = int(Path("/proc/self/statm").read_bytes().split()[1])
            if abs(resident - seen) > self._STEP_PAGES:
                seen, began = resident, time.thread_time()
                self.mark()
                rest_s = max(rest_s, self._REST * (time.thread_time() - began))


# Items that appear with the first pass and the cache, and items that exist only before. The draft's have a prefix.
_RUNNING = frozenset(
    {
        "kv",
        "kv_ring",
        "kv_labels",
        "kv_value_rows",
        "logits",
        "activations",
        "workspace",
        "attention_bias",
        "attention_scores",
        "sampling",
        "grammar_room",
    }
)
_LOADING = frozenset({"load_transient", "self_test", "tokenizer_transient"})
# Items of weights: all of a model, or those that stay in memory and the window for the others; and the draft model's.
WEIGHT_ITEMS = frozenset({"weights", "weights_pinned", "weights_window", "draft_weights"})
_DRAFT = "draft_"


def phases(items: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the items of a plan by phase: "load", "load_draft" (with a draft model) and "run", in this order.

    The items of a phase exist at the same time. A target is loaded before it has a cache, and a draft model is loaded while
    the target exists. Transient memory of loading is free when tokens are generated.
    """
    target = {name: size for name, size in items.items() if not name.startswith(_DRAFT)}
    draft = {name: size for name, size in items.items() if name.startswith(_DRAFT)}
    by_phase = {"load": {name: size for name, size in target.items() if name not in _RUNNING}}
    if f"{_DRAFT}weights" in draft:
        by_phase["load_draft"] = {name: size for name, size in target.items() if name not in _LOADING} | {
            name: size for name, size in draft.items() if name.removeprefix(_DRAFT) not in _RUNNING
        }
    by_phase["run"] = {name: size for name, size in items.items() if name.removeprefix(_DRAFT) not in _LOADING}
    return by_phase


def charged_bytes(items: Mapping[str, int]) -> int:
    """Return the sum of the largest phase."""
    return max(sum(phase.values()) for phase in phases(items).values())


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """The use of one of an accelerator's memories, or of a disk.

    Members:
        name: DRAM, CMA, BRAM, URAM, or the folder on the disk.
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
