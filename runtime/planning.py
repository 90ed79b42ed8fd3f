"""Planning: choose drafter, tree, context, KV bits and pass size under a memory budget, before anything is loaded.

Plans are computed from the manifests of bundles only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING

from edgedec.bundle import Bundle
from edgedec.embedded import bundle_folder
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph, context_size
from edgedec.memory import Plan, charged_bytes, format_bytes, largest_context, phases
from edgedec.runtime.estimates import tokens_per_second
from edgedec.runtime.protocols import Drafter, Limits
from edgedec.runtime.speculation import SpecConfig, create_drafter
from edgedec.runtime.targets import (
    GPU_DEVICES,
    TargetModule,
    check_kv_bits,
    driver_bytes,
    host_device,
    is_accelerator,
    target_module,
)

if TYPE_CHECKING:
    from edgedec.runtime.accelerator.options import AcceleratorOptions

__all__ = ["RunPlan", "make_plan"]

_LOG = logging.getLogger(__name__)

DEFAULT_CONTEXT = 2048  # tokens of context without --ctx-size, if the model has more
SMALLEST_CONTEXT = 128  # tokens to which a plan without --ctx-size may shrink the context
_MOST_ROWS = 64  # maximum number of rows of a pass on devices without a limit
PASS_ROWS = (32, 8, 1)  # rows of a prefill pass to choose from, best first
TREES = (16, 8, 4, 2)  # numbers of guesses to which a plan may shrink a tree

# Memory of the tokenizers library: 16 to 22 bytes were measured for each byte of tokenizer.json.
_TOKENIZER_FACTOR, _TOKENIZER_BYTES = 24, 1 << 20
_HOST_BYTES = 3 << 20  # bytes of text, streams, the template engine and threads
_SEQUENCE_BYTES = 1 << 18  # bytes of text and streams of each further sequence
_BLOCK_ROWS = 16  # upper bound of ``TargetInfo.block_rows``
_SAMPLING_ROWS = 6  # float64 copies of a row of logits
# Context and tree of the fixed baseline, a run without planning (docs/glossary.md).
_BASELINE_CONTEXT, _BASELINE_NODES = 1024, 64
_SHORTER = 0.5  # exponent of the context's size in a plan's value: a quarter of the context counts as half the speed
_COARSER = 0.95  # factor of a plan's value for int8 keys and values, which lose some quality
# Exponent of the tree's size in a plan's value: a ninth of the nodes counts as a tenth less speed. Estimates assume a
# typical acceptance, with which small trees do as well as large ones, but texts that copy profit from large trees.
_SMALLER = 0.05
# Time of a row of a wide pass relative to a pass of one row (measured: prompts read row by row take three times as long),
# and the assumed number of prompt tokens for each token of an answer.
_ROW, _READ = 0.3, 0.5


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A plan, the limits that keep a run within it, and its settings of speculation.

    ``draft`` is the draft model; None if there is none or the plan has no room for it. ``sequences`` is the number of texts
    that can be written at a time.
    """

    plan: Plan
    limits: Limits
    spec: SpecConfig
    draft: Bundle | None
    sequences: int = 1


@dataclass(frozen=True, kw_only=True)
class _RunChoice:
    """One combination of settings."""

    spec: SpecConfig
    draft: Bundle | None
    kv_bits: int
    rows: int  # rows of the widest pass


@dataclass(frozen=True, kw_only=True)
class _Planner:
    """Computes the memory and the estimated speed of choices, and finds the best one."""

    bundle: Bundle
    module: TargetModule
    device: str
    threads: int
    budget_bytes: int | None
    bytes_per_second: float | None  # bandwidth of an accelerator's memory; None on other devices
    acceptance: float | None = None  # share of right guesses; None: the usual one of the drafter
    sequences: int = 1  # texts that can be written at a time
    beside: Mapping[str, int] = field(default_factory=dict)  # bytes that are kept beside the model, by part

    def limits(self, choice: _RunChoice, ctx_size: int) -> Limits:
        widest = self.module.bounds(self.bundle, self.device, ctx_size).rows or _MOST_ROWS
        rows = min(max(choice.rows, choice.spec.nodes), ctx_size, widest)
        depth = min(choice.spec.draft_max, choice.spec.nodes - 1, rows - 1)
        limits = Limits(nodes=rows, depth=depth, positions=ctx_size)
        if self.sequences == 1:
            return limits
        batch = min(max(rows, self.sequences * choice.spec.nodes), widest)
        # Room for every text, for its guesses, and for a copy of the last block of a prefix that it shares.
        each = ctx_size + rows + 2 * _BLOCK_ROWS
        return replace(limits, cache_rows=self.sequences * each, batch_rows=max(batch, self.sequences))

    def drafter(self, choice: _RunChoice) -> Drafter:
        spec, device = choice.spec, host_device(self.device)
        return create_drafter(spec.drafter, choice.draft, device=device, threads=self.threads, samples=spec.samples)

    def items(self, choice: _RunChoice, ctx_size: int) -> dict[str, int]:
        limits = self.limits(choice, ctx_size)
        # The decoder ``switch`` compares the two models with all rows of a pass.
        rows = limits.nodes if choice.spec.decoder == "switch" else min(choice.spec.nodes, limits.nodes)
        if self.sequences > 1:
            rows = limits.batch_rows
        target = self.module.footprint(
            self.bundle,
            limits,
            device=self.device,
            threads=self.threads,
            kv_bits=choice.kv_bits,
            result_rows=rows,
        )
        # The limits are those of all rows, because a draft model reads prompts in such passes.
        drafter = self.drafter(choice).footprint(limits)
        return {
            **target,
            # All sequences share the draft model and its cache, and each has a draft of its own.
            **{
                name: size if name.removeprefix("draft_") in target else self.sequences * size
                for name, size in drafter.items()
            },
            "tokenizer": _TOKENIZER_BYTES + _TOKENIZER_FACTOR * self.bundle.file_bytes["tokenizer.json"],
            "sampling": _SAMPLING_ROWS * 8 * int(self.bundle.config["vocab_size"]),
            "host": _HOST_BYTES + (self.sequences - 1) * _SEQUENCE_BYTES,
            **self.beside,
        }

    def total(self, choice: _RunChoice, ctx_size: int) -> int:
        return charged_bytes(self.items(choice, ctx_size))

    def speed(self, choice: _RunChoice, ctx_size: int) -> float:
        """Return the estimated tokens per second with half of the context in use."""
        return tokens_per_second(
            self.items(choice, ctx_size),
            drafter=choice.spec.drafter_name,
            nodes=min(choice.spec.nodes, self.limits(choice, ctx_size).nodes),
            model=choice.draft is not None,
            switch=choice.spec.decoder == "switch",
            acceptance=None if choice.spec.nodes == 1 else self.acceptance,
            threads=self.threads,
            device_bytes_per_second=self.bytes_per_second,
        )

    def value(self, choice: _RunChoice, ctx_size: int, high: int, request: _RunChoice) -> float:
        """Return the estimated tokens per second, including the time for prompts, with discounts.

        The value is discounted if the choice has fewer KV bits or nodes than ``request``, or less context than ``high``.
        """
        plain = replace(choice, spec=SpecConfig(), draft=None)
        rows = self.limits(choice, ctx_size).nodes
        seconds = 1 / self.speed(choice, ctx_size) + _READ * (_ROW + (1 - _ROW) / rows) / self.speed(plain, ctx_size)
        discount = (ctx_size / high) ** _SHORTER * (_COARSER if choice.kv_bits < request.kv_bits else 1.0)
        if choice.spec.nodes > 1:
            discount *= (min(choice.spec.nodes, rows) / request.spec.nodes) ** _SMALLER
        return float(discount / seconds)

    def largest(self, choice: _RunChoice, low: int, high: int) -> int | None:
        """Return the largest context from ``low`` to ``high`` that fits the budget; None if none does."""
        if self.budget_bytes is None:
            return high
        return largest_context(
            lambda ctx_size: self.total(choice, ctx_size), low=low, high=high, budget_bytes=self.budget_bytes
        )

    def best(self, choices: list[_RunChoice], low: int, high: int) -> tuple[_RunChoice, int]:
        """Return the choice of the highest value that fits and its context, or the smallest choice if none fits."""
        best, best_value, precise = None, 0.0, [choice for choice in choices if choice.kv_bits == choices[0].kv_bits]
        if any(self.largest(choice, high, high) for choice in precise):
            choices = precise  # fewer KV bits are for context only, and the whole context fits without them
        for choice in choices:
            ctx_size = self.largest(choice, low, high)
            if ctx_size is None:
                continue
            value = self.value(choice, ctx_size, high, choices[0])
            if value > best_value * 1.001:  # the first one wins if values are equal
                best, best_value = (choice, ctx_size), value
        return best or (min(choices, key=lambda choice: self.total(choice, low)), low)

    def hint(self, choice: _RunChoice, ctx_size: int) -> str:
        """Return a hint that names the largest context that fits the budget, and the budget that ``ctx_size`` needs."""
        need = -(-self.total(choice, ctx_size) // (1 << 20))
        smaller = self.largest(choice, 1, ctx_size)
        if smaller is None:
            return f"try --memory-budget {need}MiB (even a context of 1 needs {format_bytes(self.total(choice, 1))})"
        return f"try --ctx-size {smaller}, or --memory-budget {need}MiB"


def _specs(spec: SpecConfig, draft: Bundle | None, budget: bool) -> Iterator[tuple[SpecConfig, Bundle | None]]:
    """Yield the settings of speculation that ``spec`` allows, in order of preference; ``auto`` ends with no speculation."""
    drafts = [draft, None] if draft is not None and spec.drafter == "auto" else [draft]
    specs = [spec]
    if spec.drafter == "auto" and spec.samples > 1 and budget:
        specs.append(replace(spec, samples=1))  # without the table of ``stand``
    for option, with_draft in product(specs, drafts):
        yield option, with_draft
        if spec.nodes > 1 and budget:
            smaller = [size for size in TREES if size < spec.draft_max]
            for size in smaller:
                nodes = min(spec.tree_nodes, size + 1) if spec.tree_nodes else 0
                yield replace(option, draft_max=size, tree_nodes=nodes), with_draft
    if spec.drafter == "auto":
        yield replace(spec, drafter="none", draft=None), None


def _choices(
    spec: SpecConfig, draft: Bundle | None, kv_choices: tuple[int, ...], kv_bits: int | None, budget: bool
) -> list[_RunChoice]:
    # Without a budget there is no reason to reduce precision.
    bits = (kv_bits,) if kv_bits else tuple(b for b in kv_choices if b <= kv_choices[0]) if budget else kv_choices[:1]
    rows = PASS_ROWS if budget else PASS_ROWS[:1]
    return [
        _RunChoice(spec=option, draft=with_draft, kv_bits=b, rows=r)
        for option, with_draft in _specs(spec, draft, budget)
        for b in bits
        for r in rows
    ]


def make_plan(
    bundle: Bundle,
    *,
    device: str = "cpu",
    threads: int = 0,
    ctx_size: int = 0,
    kv_bits: int | None = None,
    spec: SpecConfig | None = None,
    budget_bytes: int | None = None,
    sequences: int = 1,
    beside: Mapping[str, int] | None = None,
    baseline_bytes: int = 0,
    accelerator: AcceleratorOptions | None = None,
    draft: Bundle | None = None,
    acceptance: float | None = None,
) -> RunPlan:
    """Plan a run.

    Args:
        bundle: the model.
        device: a value of ``--device``.
        threads: number of CPU threads; 0 leaves it to the target.
        ctx_size: size of the context in tokens; 0 chooses the largest that fits, at most the model's and at most 2048.
        kv_bits: bits of keys and values; None chooses the target's default, or fewer bits under a budget.
        spec: settings of speculation; None: no speculation. Under a budget, trees may be smaller than these settings, and
            ``auto`` may go without a draft model or without speculation.
        budget_bytes: maximum memory of the model in bytes; None: no limit.
        sequences: number of texts that can be written at a time.
        beside: bytes of what the program keeps beside the model, by part; None: nothing.
        baseline_bytes: memory of the process without the model; the plan reports it, but does not charge it.
        accelerator: the accelerator, if the device is one; None: the default one.
        draft: the draft model, of which only the manifest is used; None: that of ``spec``.
        acceptance: expected share of right guesses, for the estimated speed; None: the usual one of the drafter.

    Raises:
        UsageError: ``ctx_size`` is negative or larger than the model's context, the device is unknown or does not support
            ``kv_bits``, or the draft model has a different tokenizer.
        UnsupportedError: ``budget_bytes`` is given for a GPU, or several sequences for an accelerator.
        BundleError: the draft model's bundle cannot be opened.
    """
    module = target_module(device, accelerator)
    check_kv_bits(module, device, kv_bits, bundle)
    bounds = module.bounds(bundle, device)
    most = context_size(bundle.config)
    holder = "the model"
    if bounds.positions is not None and bounds.positions < most:
        most, holder = bounds.positions, "the accelerator"
    if not 0 <= ctx_size <= most:
        raise UsageError(f"--ctx-size must be 1 to {most}, which is what {holder} has, not {ctx_size}")
    high = ctx_size or min(most, DEFAULT_CONTEXT)
    if budget_bytes is not None and device in GPU_DEVICES:
        raise UnsupportedError(
            f"a memory budget cannot be kept on {device}: the driver's own memory is not known beforehand; "
            "leave --memory-budget out, or use --device cpu"
        )
    if not 1 <= sequences <= _MOST_ROWS:
        raise UsageError(f"sequences must be 1 to {_MOST_ROWS}, the rows of a pass, not {sequences}")
    if sequences > 1 and is_accelerator(device):
        raise UnsupportedError(f"{device} has one cache, so it writes one text at a time, not {sequences}")
    spec = spec or SpecConfig()
    if draft is None and spec.draft is not None:
        draft = _open_draft(bundle, spec)
    planner = _Planner(
        bundle=bundle,
        module=module,
        device=device,
        threads=threads,
        budget_bytes=budget_bytes,
        bytes_per_second=bounds.bytes_per_second,
        acceptance=acceptance,
        sequences=sequences,
        beside=beside or {},
    )
    choices = _choices(spec, draft, module.kv_choices(device, bundle), kv_bits, budget_bytes is not None)
    low = ctx_size or min(high, SMALLEST_CONTEXT)
    choice, context = planner.best(choices, low, high)
    items = planner.items(choice, context)
    total = charged_bytes(items)
    fits = budget_bytes is None or total <= budget_bytes
    limits = planner.limits(choice, context)
    plan = Plan(
        fits=fits,
        budget_bytes=budget_bytes,
        total_bytes=total,
        items=items,
        baseline_bytes=baseline_bytes,
        ctx_size=context,
        kv_bits=choice.kv_bits,
        drafter=choice.spec.drafter_name,
        draft_model=choice.draft is not None,
        draft_tokens=limits.depth,
        tree_nodes=min(choice.spec.nodes, limits.nodes),
        pass_rows=limits.nodes,
        estimated_tokens_per_second=planner.speed(choice, context),
        # The baseline has the requested settings, not those that fit the budget. An accelerator is built for one context.
        fixed_baseline=_fixed_baseline(planner, choices[0], most if bounds.bytes_per_second is None else context),
        speculation_from_bytes=_least_with_speculation(
            planner, _choices(spec, draft, module.kv_choices(device, bundle), kv_bits, True), low
        ),
        memories=module.memories(bundle, limits, device),
        hint="" if fits else planner.hint(choice, context),
        driver_bytes=driver_bytes(device),
        notes=() if bounds.rings else _window_notes(bundle, device, context),
    )
    _log_plan(plan, choice, len(choices))
    return RunPlan(plan=plan, limits=limits, spec=choice.spec, draft=choice.draft, sequences=sequences)


def _window_notes(bundle: Bundle, device: str, ctx_size: int) -> tuple[str, ...]:
    """Return a note if layers have a window below the context and the device keeps the other rows, too."""
    states = build_graph(bundle.config).states.values()  # a board's bundle has no weights for ``bundle_graph``
    windows = [state.window for state in states if state.window is not None and state.window < ctx_size]
    if not windows:
        return ()
    return (
        f"{len(windows)} of {len(states)} layers see the last {max(windows)} positions only, and {device} keeps all rows of "
        "them; --device cpu with the CPU kernels (edgedec doctor) keeps those of the window",
    )


def _log_plan(plan: Plan, choice: _RunChoice, ways: int) -> None:
    budget = "no budget" if plan.budget_bytes is None else f"budget {format_bytes(plan.budget_bytes)}"
    guesses = "no guesses"
    if choice.spec.drafter != "none":
        model = "with" if choice.draft is not None else "without"
        guesses = (
            f"drafter {choice.spec.drafter_name} {model} a draft model, {choice.spec.policy} of {plan.tree_nodes} nodes"
        )
    _LOG.info(
        "plan, the best of %d: %s charged at most, %s; context %d, keys and values of %d bits, passes of %d rows; %s",
        *(ways, format_bytes(plan.total_bytes), budget, plan.ctx_size, plan.kv_bits, plan.pass_rows, guesses),
    )


def _open_draft(bundle: Bundle, spec: SpecConfig) -> Bundle:
    """Return the draft model's bundle.

    Raises:
        UsageError: its tokenizer is not the model's.
    """
    assert spec.draft is not None
    draft = Bundle.open(bundle_folder(spec.draft), verify=bundle.verify)
    if draft.tokenizer_hash != bundle.tokenizer_hash:
        raise UsageError(
            f"the draft model {spec.draft} has the tokenizer {draft.tokenizer_hash[:12]}, {bundle.path} has "
            f"{bundle.tokenizer_hash[:12]}: both must be made from checkpoints with one tokenizer; give another -md"
        )
    return draft


def _fixed_baseline(planner: _Planner, choice: _RunChoice, most: int) -> dict[str, int]:
    """Return the charged bytes by item, without weights, of a run without planning, with which memory goals are compared.

    It has a context of 1024, float16 keys and values, and a tree of 64 nodes with whole rows of float32 logits.
    """
    spec = replace(choice.spec, draft_max=_BASELINE_NODES - 1, tree_nodes=_BASELINE_NODES)
    if choice.spec.drafter == "none":
        spec = replace(spec, drafter="ngram")
    bits = 16 if 16 in planner.module.kv_choices(planner.device, planner.bundle) else choice.kv_bits
    fixed = replace(choice, spec=spec, kv_bits=bits, rows=max(PASS_ROWS))
    items = phases(planner.items(fixed, min(_BASELINE_CONTEXT, most)))["run"]
    return {name: size for name, size in items.items() if name not in ("weights", "draft_weights")}


def _least_with_speculation(planner: _Planner, choices: list[_RunChoice], low: int) -> int | None:
    """Return the smallest budget at which speculation pays by estimate; None if it never pays or is not requested."""
    plain = max((planner.speed(c, low) for c in choices if c.spec.nodes == 1), default=0.0)
    paying = [c for c in choices if c.spec.nodes > 1 and planner.speed(c, low) > plain]
    return min((planner.total(choice, low) for choice in paying), default=None)
