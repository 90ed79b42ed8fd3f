"""The planner: memory, estimated speed and value of the settings of a run, and the search for the best ones.

``planning.make_plan`` makes the plan of a run with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from edgedec.bundle.bundle import Bundle
from edgedec.memory.byte_sizes import format_bytes
from edgedec.memory.items import DRAFT, PER_TEXT, check_items
from edgedec.memory.plan import DiskUse, MemoryUse, charged_bytes, largest_context, phases
from edgedec.runtime.drafters._files import file_uses
from edgedec.runtime.model_graph import is_recurrent, tap_bytes
from edgedec.runtime.planning.disk_rate import measure_disk
from edgedec.runtime.planning.estimates import DiskReads, draft_bytes, pass_seconds, tokens_per_second
from edgedec.runtime.planning.speculation import SpecConfig, create_drafter, run_taps
from edgedec.runtime.protocols import Drafter, Limits
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.run_sizes import MOST_ROWS
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import Bounds, TargetModule, host_device, lent_bytes, share_tables

__all__ = ["PASS_ROWS", "Planner", "RunChoice", "run_choices"]

PASS_ROWS = (32, 8, 1)  # rows of a prefill pass to choose from, best first
TREES = (32, 16, 8, 4, 3, 2)  # numbers of guesses to which a plan may shrink a tree
# Memory of the tokenizers library for each byte of tokenizer.json: up to 5.9 bytes that stay were measured, and up to 18.6
# while it is read. Even a small vocabulary takes the last figure besides.
_TOKENIZER_FACTOR, _READING_FACTOR, _TOKENIZER_BYTES = 8, 20, 1 << 19
# Bytes of streams, the template engine and threads, and of modules that a run imports late (up to 0.2 MiB were
# measured); of the objects of a round for each node of its tree; and of the text for each token of the context.
_HOST_BYTES, _NODE_BYTES, _TEXT_BYTES = 67 << 14, 4 << 10, 192
_CHOOSING_BYTES = 5 << 16  # memory of plans with and without a draft model: up to 0.26 MiB were measured
_SEQUENCE_BYTES = 1 << 18  # bytes of text and streams of each further sequence
_BLOCK_ROWS = 16  # upper bound of ``TargetInfo.block_rows``
_SAMPLING_ROWS = 6  # float64 copies of a row of logits
_AS_LONG = 7 / 8  # contexts that are not the full one count as equally long from this share of the longest on
_ROW_BY_ROW = 0.5  # share for which a context counts if prompts are read row by row, which takes three times as long
_SHORTER = 0.5  # exponent of the context's size in a plan's value: a quarter of the context counts as half the speed
# Factor of a plan's value for keys and values of fewer bits than the target's default, which lose some quality.
_COARSER = {8: 0.95, 4: 0.85}
# Exponent of the tree's size in a plan's value: a ninth of the nodes counts as a tenth less speed. Estimates assume a
# typical acceptance, with which small trees do as well as large ones, but texts that copy profit from large trees.
_SMALLER = 0.05
_DISK_BYTES_PER_SECOND = 400e6  # assumed rate of a disk by which choices are compared
_WEIGHT_STEPS, _SPARE_BYTES = 4, 64 << 10  # steps towards the memory of the weights, and what may be left after them
_DISK_ROWS = (1, 2, 4, 8, 16, 32)  # rows of passes whose seconds a plan tells
# Time of a row of a wide pass relative to a pass of one row (measured: prompts read row by row take three times as long),
# and the assumed number of prompt tokens for each token of an answer.
_ROW, _READ = 0.3, 0.5


@dataclass(frozen=True, kw_only=True)
class RunChoice:
    """One combination of settings."""

    spec: SpecConfig
    drafts: tuple[Bundle, ...]
    kv_bits: int
    rows: int  # rows of the widest pass
    streams: bool = False  # True: weights that memory has no room for are read from the disk


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Computes the memory and the estimated speed of choices, and finds the best one."""

    bundle: Bundle
    module: TargetModule
    settings: RunSettings
    bounds: Bounds  # the device's
    acceptance: float | None = None  # share of right guesses; None: the usual one of the drafter

    @property
    def budget_bytes(self) -> int | None:
        """The maximum memory of the model in bytes; None: no limit."""
        return self.settings.budget_bytes

    @property
    def least_weights(self) -> int | None:
        """``Bounds.least_weights``; None without a budget, too."""
        return None if self.budget_bytes is None else self.bounds.least_weights

    @cached_property
    def all_weights(self) -> int:
        """Bytes of all weights in memory."""
        least = Limits(nodes=1, depth=0, positions=1)
        return self.module.footprint(self.bundle, TargetRequest(limits=least, device=self.settings.device))["weights"]

    @cached_property
    def recurrent(self) -> bool:
        """True if the model has recurrent states."""
        return is_recurrent(self.bundle)

    @cached_property
    def beside(self) -> Mapping[str, int]:
        """Bytes that are kept beside the model, by part."""
        return dict(self.settings.beside or {})

    @property
    def _choosing(self) -> int:
        """Bytes that the choice among drafters leaves behind."""
        spec = self.settings.spec
        return _CHOOSING_BYTES if spec is not None and spec.drafter == "auto" else 0

    def limits(self, choice: RunChoice, ctx_size: int) -> Limits:
        limits = self._sizes(choice, ctx_size)
        if not choice.streams:
            return self._with_snapshots(choice, limits)
        assert self.least_weights is not None
        assert self.budget_bytes is not None
        limits = replace(limits, weight_bytes=self.least_weights)
        # Transient memory of loading shrinks as the weights grow, so that one step may not fill the budget.
        for _ in range(_WEIGHT_STEPS):
            items = self._items(choice, limits)
            spare = self.budget_bytes - charged_bytes(items)
            if spare < _SPARE_BYTES:
                break
            # The items may be a little less than the limit, which counts whole pages.
            limits = replace(limits, weight_bytes=items["weights_pinned"] + items["weights_window"] + spare)
        return limits

    def _sizes(self, choice: RunChoice, ctx_size: int) -> Limits:
        """Return the limits of a run with all weights in memory."""
        texts = self.settings.sequences
        widest = self.module.bounds(self.bundle, self.settings.device, ctx_size, texts).rows or MOST_ROWS
        least = max(choice.spec.nodes, choice.spec.writes.traits.least)
        rows = min(max(choice.rows, least), ctx_size, widest)
        depth = min(choice.spec.draft_max, choice.spec.nodes - 1, rows - 1)
        limits = Limits(nodes=rows, depth=depth, positions=ctx_size, value_rows=self.settings.value_rows)
        if texts == 1:
            return limits
        batch = min(max(rows, texts * least), widest)
        # Room for every text, for its guesses, and for a copy of the last block of a prefix that it shares.
        each = ctx_size + rows + 2 * _BLOCK_ROWS
        return replace(limits, cache_rows=texts * each, batch_rows=max(batch, texts))

    def _with_snapshots(self, choice: RunChoice, limits: Limits) -> Limits:
        """Return the limits with snapshots of recurrent states, if the model has such states and the budget has room.

        They save time only, so they do not compete with other settings for memory.
        """
        if not self.recurrent:
            return limits
        more = replace(limits, snapshots=1 + self.settings.sequences)
        fits = self.budget_bytes is None or charged_bytes(self._items(choice, more)) <= self.budget_bytes
        return more if fits else limits

    def drafter(self, choice: RunChoice) -> Drafter:
        return create_drafter(
            choice.spec.drafter,
            choice.drafts,
            device=host_device(self.settings.device),
            threads=self.settings.threads,
            samples=choice.spec.samples,
            kv_bits=choice.kv_bits,
        )

    def items(self, choice: RunChoice, ctx_size: int) -> dict[str, int]:
        return self._items(choice, self.limits(choice, ctx_size))

    def memories(self, choice: RunChoice, limits: Limits) -> tuple[MemoryUse, ...]:
        """Return the device's own memories, and disks with files of values, and what the models take of them together."""
        joined = dict[str, MemoryUse]()
        guesser = self.drafter(choice)
        taps = run_taps(self.bundle, guesser, embeddings=self.settings.embeddings)
        request = self.settings.target_request(limits, kv_bits=choice.kv_bits, taps=taps)
        for use in (*self.module.memories(self.bundle, request), *file_uses(guesser, limits)):
            others = joined[use.name].used_bytes if use.name in joined else 0
            joined[use.name] = replace(use, used_bytes=others + use.used_bytes)
        return tuple(joined.values())

    def _items(self, choice: RunChoice, limits: Limits) -> dict[str, int]:
        decoder = choice.spec.writes.traits
        rows = limits.nodes if decoder.result_rows == "all" else min(choice.spec.nodes, limits.nodes)
        if self.settings.sequences > 1:
            rows = limits.batch_rows
        guesser = self.drafter(choice)
        taps = run_taps(self.bundle, guesser, embeddings=self.settings.embeddings)
        tap_bytes(self.bundle, taps)  # refuses values that the model lacks
        request = self.settings.target_request(limits, kv_bits=choice.kv_bits, taps=taps, result_rows=rows)
        target = self.module.footprint(self.bundle, request)
        # The limits are those of all rows, because a draft model reads prompts in such passes.
        drafter = dict(guesser.footprint(limits))
        check_items(target, f"--device {self.settings.device}")
        name = choice.spec.drafter
        check_items(drafter, f"the drafter {name if isinstance(name, str) else type(name).__name__}", DRAFT)
        if choice.drafts and "draft_rotary_tables" in drafter:
            drafter["draft_rotary_tables"] -= self._shared_tables(choice, limits, drafter["draft_rotary_tables"])
            if not drafter["draft_rotary_tables"]:
                del drafter["draft_rotary_tables"]
        vocabulary = self.bundle.file_bytes["tokenizer.json"]
        return {
            **target,
            # All sequences share the draft model and its cache, and each has a draft of its own.
            **{name: self.settings.sequences * size if name in PER_TEXT else size for name, size in drafter.items()},
            "tokenizer": _TOKENIZER_BYTES + _TOKENIZER_FACTOR * vocabulary,
            # It is read before the target is loaded, so only the excess over what the target takes then counts.
            "tokenizer_transient": max(
                0, (_READING_FACTOR - _TOKENIZER_FACTOR) * vocabulary - sum(phases(target)["load"].values())
            ),
            "sampling": _SAMPLING_ROWS * 8 * int(self.bundle.config["vocab_size"]),
            "host": (
                _HOST_BYTES
                + self._choosing
                + _NODE_BYTES * choice.spec.nodes
                + _TEXT_BYTES * limits.positions
                + (self.settings.sequences - 1) * _SEQUENCE_BYTES
                + self.settings.sequences
                * (limits.depth + 1)
                * tap_bytes(self.bundle, taps)  # values of accepted paths
            ),
            **self.beside,
        }

    def _shared_tables(self, choice: RunChoice, limits: Limits, every: int) -> int:
        """Return the bytes of the tables of positions of draft models that are those of the target.

        Args:
            every: bytes of all tables of the draft models.
        """
        sharing = [one for one in choice.drafts if share_tables(self.bundle, one, self.settings.device)]
        if len(sharing) == len(choice.drafts):
            return every
        return sum(self._model(one, choice).footprint(limits).get("draft_rotary_tables", 0) for one in sharing)

    def _model(self, draft: Bundle, choice: RunChoice) -> Drafter:
        """Return the drafter ``model`` of one of the draft models."""
        device, threads = host_device(self.settings.device), self.settings.threads
        return create_drafter("model", draft, device=device, threads=threads, kv_bits=choice.kv_bits)

    def _guess_bytes(self, choice: RunChoice, limits: Limits) -> float | None:
        """Return what a pass of the fastest draft model reads; None if the items of the plan say it."""
        if len(choice.drafts) < 2 and not any(one.resident for one in choice.drafts):
            return None
        return min(
            draft_bytes(self._model(one, choice).footprint(limits), 0 if limits.weight_bytes else lent_bytes(one))
            for one in choice.drafts
        )

    def total(self, choice: RunChoice, ctx_size: int) -> int:
        return charged_bytes(self.items(choice, ctx_size))

    def reads(self, items: Mapping[str, int], bytes_per_second: float = _DISK_BYTES_PER_SECOND) -> DiskReads | None:
        """Return what each pass reads from a disk of this rate; None if all weights are in memory."""
        if "weights_pinned" not in items:
            return None
        return DiskReads(nbytes=max(0, self.all_weights - items["weights_pinned"]), bytes_per_second=bytes_per_second)

    def disk_use(self, choice: RunChoice, ctx_size: int) -> DiskUse | None:
        """Measure the disk, and return what each pass reads from it; None if all weights are in memory.

        Raises:
            BundleError: the bundle cannot be read.
        """
        if not choice.streams:
            return None
        key = "disk_rate"
        if key not in self.bundle.derived:  # a search for the best plan makes several
            self.bundle.derived[key] = measure_disk(self.bundle.weights_file)
        rate = self.bundle.derived[key]
        items, most = self.items(choice, ctx_size), self.limits(choice, ctx_size).nodes
        reads = self.reads(items, rate.bytes_per_second)
        assert reads is not None
        return DiskUse(
            bytes_per_pass=reads.nbytes,
            bytes_per_second=rate.bytes_per_second,
            direct=rate.direct,
            pass_seconds={
                rows: pass_seconds(items, rows, threads=self.settings.threads, disk=reads)
                for rows in _DISK_ROWS
                if rows <= most
            },
        )

    def least_total(self, choice: RunChoice, ctx_size: int) -> int:
        """Return the total with as few weights in memory as possible, if some of them are streamed."""
        if not choice.streams:
            return self.total(choice, ctx_size)
        assert self.least_weights is not None
        return charged_bytes(
            self._items(choice, replace(self._sizes(choice, ctx_size), weight_bytes=self.least_weights))
        )

    def speed(self, choice: RunChoice, ctx_size: int, disk: DiskUse | None = None) -> float:
        """Return the estimated tokens per second with half of the context in use.

        ``disk`` is the measured one; None: one of the assumed rate.
        """
        limits = self.limits(choice, ctx_size)
        items = self._items(choice, limits)
        return tokens_per_second(
            items,
            drafter=choice.spec.drafter_name,
            nodes=min(choice.spec.nodes, limits.nodes),
            model=bool(choice.drafts),
            guess_bytes=self._guess_bytes(choice, limits),
            every_token=not choice.spec.writes.traits.guesses,
            acceptance=None if choice.spec.nodes == 1 else self.acceptance,
            threads=self.settings.threads,
            device_bytes_per_second=self.bounds.bytes_per_second,
            disk=self.reads(items, _DISK_BYTES_PER_SECOND if disk is None else disk.bytes_per_second),
        )

    def value(self, choice: RunChoice, ctx_size: int, high: int, request: RunChoice) -> float:
        """Return the estimated tokens per second, including the time for prompts, with discounts.

        The value is discounted if the choice has fewer KV bits or nodes than ``request``, or less context than ``high``.
        """
        plain = replace(choice, spec=SpecConfig(), drafts=())
        rows = self.limits(choice, ctx_size).nodes
        seconds = 1 / self.speed(choice, ctx_size) + _READ * (_ROW + (1 - _ROW) / rows) / self.speed(plain, ctx_size)
        discount = (ctx_size / high) ** _SHORTER * (
            _COARSER[choice.kv_bits] if choice.kv_bits < request.kv_bits else 1.0
        )
        if choice.spec.nodes > 1:
            discount *= (min(choice.spec.nodes, rows) / request.spec.nodes) ** _SMALLER
        return float(discount / seconds)

    def largest(self, choice: RunChoice, low: int, high: int) -> int | None:
        """Return the largest context from ``low`` to ``high`` that fits the budget; None if none does."""
        if self.budget_bytes is None:
            return high
        return largest_context(
            lambda ctx_size: self.least_total(choice, ctx_size), low=low, high=high, budget_bytes=self.budget_bytes
        )

    def best(self, choices: list[RunChoice], low: int, high: int) -> tuple[RunChoice, int]:
        """Return the best choice that fits and its context, or the smallest choice if none fits.

        The context comes first, then the bits of keys and values, then the value. Only weights that are streamed from a disk
        are weighed against the context.
        """
        long = self._longest(choices, low, high)
        best = self._most_valuable(long, low, high)
        if best is None and self.least_weights is not None:
            streaming = [replace(choice, streams=True) for choice in choices]
            best = self._most_valuable(self._widest(streaming, low), low, high)
            choices = [*choices, *streaming]
        return best or (min(choices, key=lambda choice: self.total(choice, low)), low)

    def _longest(self, choices: list[RunChoice], low: int, high: int) -> list[RunChoice]:
        """Return the choices whose context is the longest, of the highest bits among them; none if no choice fits.

        Some tokens of context that is not the full one are worth passes of more rows, or a larger tree, but no draft model
        that ``auto`` may do without.
        """
        sizes = {at: size for at, choice in enumerate(choices) if (size := self.largest(choice, low, high)) is not None}
        counts = {
            at: size * (_ROW_BY_ROW if max(choices[at].rows, choices[at].spec.nodes) == 1 else 1)
            for at, size in sizes.items()
        }
        longest = max(counts.values(), default=0.0)
        bits = max((choices[at].kv_bits for at, count in counts.items() if count == longest), default=0)
        enough = longest if longest == high else _AS_LONG * longest
        model_is_optional = not all(choice.drafts for choice in choices)
        return [
            choices[at]
            for at, count in counts.items()
            if choices[at].kv_bits == bits
            and count >= (longest if choices[at].drafts and model_is_optional else enough)
        ]

    def _widest(self, choices: list[RunChoice], low: int) -> list[RunChoice]:
        """Return of the choices that differ in rows alone the first that fits, because the disk's time is that of a pass."""
        first: dict[tuple[int, tuple[int, ...], int], RunChoice] = {}
        for choice in choices:
            key = id(choice.spec), tuple(map(id, choice.drafts)), choice.kv_bits
            if key not in first and self.largest(choice, low, low) is not None:
                first[key] = choice
        return list(first.values())

    def _most_valuable(self, choices: list[RunChoice], low: int, high: int) -> tuple[RunChoice, int] | None:
        """Return the choice of the highest value that fits, and its context; None if none fits."""
        best, best_value = None, 0.0
        for choice in choices:
            largest = self.largest(choice, low, high)
            if largest is None:
                continue
            # A shorter context leaves memory for weights, if some of them are streamed.
            shorter = [size for size in (high // 2, high // 4, high // 8) if low <= size < largest] + [low]
            for ctx_size in dict.fromkeys([largest, *(shorter if choice.streams else ())]):
                value = self.value(choice, ctx_size, high, choices[0])
                if value > best_value * 1.001:  # the first one wins if values are equal
                    best, best_value = (choice, ctx_size), value
        return best

    def hint(self, choice: RunChoice, ctx_size: int) -> str:
        """Return a hint that names the largest context that fits the budget, and the budget that ``ctx_size`` needs."""
        need = -(-self.total(choice, ctx_size) // (1 << 20))
        smaller = self.largest(choice, 1, ctx_size)
        if smaller is None:
            return f"try --memory-budget {need}MiB (even a context of 1 needs {format_bytes(self.total(choice, 1))})"
        return f"try --ctx-size {smaller}, or --memory-budget {need}MiB"


def _specs(
    spec: SpecConfig, drafts: tuple[Bundle, ...], budget: bool
) -> Iterator[tuple[SpecConfig, tuple[Bundle, ...]]]:
    """Yield the settings of speculation that ``spec`` allows, in order of preference; ``auto`` ends with no speculation.

    It may do without the last ones of its draft models, or without all of them.
    """
    fewest = 0 if spec.drafter == "auto" else len(drafts)
    specs = [spec]
    if spec.drafter == "auto" and spec.samples > 1 and budget:
        specs.append(replace(spec, samples=1))  # without the table of ``stand``
    for option, count in product(specs, range(len(drafts), fewest - 1, -1)):
        some = drafts[:count]
        yield option, some
        if spec.nodes > 1 and budget:
            smaller = [size for size in TREES if size < spec.draft_max]
            for size in smaller:
                nodes = min(spec.tree_nodes, size + 1) if spec.tree_nodes else 0
                yield replace(option, draft_max=size, tree_nodes=nodes), some
    if spec.drafter == "auto":
        yield replace(spec, drafter="none", draft=None), ()


def run_choices(
    spec: SpecConfig, drafts: tuple[Bundle, ...], kv_choices: tuple[int, ...], kv_bits: int | None, budget: bool
) -> list[RunChoice]:
    """Return the choices that the settings of a run allow, in order of preference.

    Args:
        kv_choices: bits of keys and values that a plan may choose, the default first.
        kv_bits: the bits that the user asked for; None: the plan chooses.
        budget: whether there is a budget. Without one there is no reason to reduce precision.
    """
    bits = (kv_bits,) if kv_bits else kv_choices if budget else kv_choices[:1]
    rows = PASS_ROWS if budget else PASS_ROWS[:1]
    return [
        RunChoice(spec=option, drafts=some, kv_bits=b, rows=r)
        for option, some in _specs(spec, drafts, budget)
        for b in bits
        for r in rows
    ]
