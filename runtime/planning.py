"""Choose drafter, tree, context, KV bits and pass size under a memory budget, from manifests alone: nothing is loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgedec.bundle import Bundle
from edgedec.embedded import bundle_folder
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import context_size
from edgedec.memory import Plan, charged_bytes, format_bytes, largest_context, phases
from edgedec.runtime.estimates import tokens_per_second
from edgedec.runtime.protocols import Drafter, Limits
from edgedec.runtime.speculation import SpecConfig, create_drafter
from edgedec.runtime.targets import GPU_DEVICES, TargetModule, check_kv_bits, host_device, target_module

if TYPE_CHECKING:
    from edgedec.runtime.accelerator.options import AcceleratorOptions

__all__ = ["RunPlan", "make_plan"]

_LOG = logging.getLogger(__name__)

DEFAULT_CONTEXT = 2048  # without --ctx-size, if the model has more
SMALLEST_CONTEXT = 128  # what a plan may shrink the context to by itself, if the model has more
_MOST_ROWS = 64  # of a pass, where the device takes any number
PASS_ROWS = (32, 8, 1)  # rows of a prefill pass, best first
TREES = (16, 8, 4, 2)  # guesses of a tree that a plan may shrink to

# Measured: the tokenizers library keeps 16 to 22 bytes for each byte of tokenizer.json.
_TOKENIZER_FACTOR, _TOKENIZER_BYTES = 24, 1 << 20
_HOST_BYTES = 3 << 20  # the interpreter's own growth: text, streams, the template engine, threads
_SAMPLING_ROWS = 6  # float64 copies of a row of logits
# Context and tree of the fixed baseline (docs/glossary.md): a run elsewhere that plans nothing.
_BASELINE_CONTEXT, _BASELINE_NODES = 1024, 64
_SHORTER = 0.5  # a context of a quarter of what was wanted counts like half the speed
_COARSER = 0.95  # int8 keys and values cost some quality: taken for context, never for speed alone
# Estimates know one usual acceptance, for which small trees serve as well as large ones. Texts that copy want the larger: a
# ninth of the nodes counts like a tenth of the speed less.
_SMALLER = 0.05
# Prompts run in passes as wide as the plan has room for. A row of a wide pass takes 0.3 of the seconds of a pass of one
# (measured: one row at a time, prompts take three times as long); half a token is read for each one written.
_ROW, _READ = 0.3, 0.5


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A plan, the limits that keep a run inside it, and what it speculates with.

    ``draft``: the draft model, where the plan has room for it.
    """

    plan: Plan
    limits: Limits
    spec: SpecConfig
    draft: Bundle | None


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """One way to run."""

    spec: SpecConfig
    draft: Bundle | None
    kv_bits: int
    rows: int  # of the widest pass


@dataclass(frozen=True, kw_only=True)
class _Planner:
    bundle: Bundle
    module: TargetModule
    device: str
    threads: int
    budget_bytes: int | None
    bytes_per_second: float | None  # of an accelerator's memory

    def limits(self, choice: _Choice, ctx_size: int) -> Limits:
        widest = self.module.bounds(self.bundle, self.device, ctx_size).rows or _MOST_ROWS
        rows = min(max(choice.rows, choice.spec.nodes), ctx_size, widest)
        depth = min(choice.spec.draft_max, choice.spec.nodes - 1, rows - 1)
        return Limits(nodes=rows, depth=depth, positions=ctx_size)

    def drafter(self, choice: _Choice) -> Drafter:
        return create_drafter(choice.spec.drafter, choice.draft, device=host_device(self.device), threads=self.threads)

    def items(self, choice: _Choice, ctx_size: int) -> dict[str, int]:
        limits = self.limits(choice, ctx_size)
        nodes = min(choice.spec.nodes, limits.nodes)
        return {
            **self.module.footprint(
                self.bundle,
                limits,
                device=self.device,
                threads=self.threads,
                kv_bits=choice.kv_bits,
                result_rows=nodes,
            ),
            **self.drafter(choice).footprint(
                limits
            ),  # it is opened with these: a draft model catches up in such passes
            "tokenizer": _TOKENIZER_BYTES + _TOKENIZER_FACTOR * self.bundle.file_bytes["tokenizer.json"],
            "sampling": _SAMPLING_ROWS * 8 * int(self.bundle.config["vocab_size"]),
            "host": _HOST_BYTES,
        }

    def total(self, choice: _Choice, ctx_size: int) -> int:
        return charged_bytes(self.items(choice, ctx_size))

    def speed(self, choice: _Choice, ctx_size: int) -> float:
        """Estimated tokens per second, half of the context in use."""
        return tokens_per_second(
            self.items(choice, ctx_size),
            drafter=choice.spec.drafter_name,
            nodes=min(choice.spec.nodes, self.limits(choice, ctx_size).nodes),
            model=choice.draft is not None,
            threads=self.threads,
            device_bytes_per_second=self.bytes_per_second,
        )

    def worth(self, choice: _Choice, ctx_size: int, high: int, wanted: _Choice) -> float:
        """Tokens per second, those of prompts read on the way; less with less than ``wanted`` and a context of ``high``."""
        plain = replace(choice, spec=SpecConfig(), draft=None)
        rows = self.limits(choice, ctx_size).nodes
        seconds = 1 / self.speed(choice, ctx_size) + _READ * (_ROW + (1 - _ROW) / rows) / self.speed(plain, ctx_size)
        kept = (ctx_size / high) ** _SHORTER * (_COARSER if choice.kv_bits < wanted.kv_bits else 1.0)
        if choice.spec.nodes > 1:
            kept *= (min(choice.spec.nodes, rows) / wanted.spec.nodes) ** _SMALLER
        return float(kept / seconds)

    def largest(self, choice: _Choice, low: int, high: int) -> int | None:
        if self.budget_bytes is None:
            return high
        return largest_context(
            lambda ctx_size: self.total(choice, ctx_size), low=low, high=high, budget_bytes=self.budget_bytes
        )

    def best(self, choices: list[_Choice], low: int, high: int) -> tuple[_Choice, int]:
        """What fits and is fastest, contexts weighed; the smallest of all if nothing fits."""
        found, best, precise = None, 0.0, [choice for choice in choices if choice.kv_bits == choices[0].kv_bits]
        if any(self.largest(choice, high, high) for choice in precise):
            choices = precise  # the whole context fits without giving up precision
        for choice in choices:
            ctx_size = self.largest(choice, low, high)
            if ctx_size is None:
                continue
            worth = self.worth(choice, ctx_size, high, choices[0])
            if worth > best * 1.001:  # of equals the first
                found, best = (choice, ctx_size), worth
        return found or (min(choices, key=lambda choice: self.total(choice, low)), low)

    def hint(self, choice: _Choice, ctx_size: int) -> str:
        """The settings nearest to ``ctx_size`` and the budget that do fit."""
        need = -(-self.total(choice, ctx_size) // (1 << 20))
        smaller = self.largest(choice, 1, ctx_size)
        if smaller is None:
            return f"try --memory-budget {need}MiB (even a context of 1 needs {format_bytes(self.total(choice, 1))})"
        return f"try --ctx-size {smaller}, or --memory-budget {need}MiB"


def _specs(spec: SpecConfig, draft: Bundle | None, budget: bool) -> Iterator[tuple[SpecConfig, Bundle | None]]:
    """Ways to speculate that ``spec`` allows, the likeliest to be wanted first; none at all is the last resort of auto."""
    drafts = [draft, None] if draft is not None and spec.drafter == "auto" else [draft]
    for with_draft in drafts:
        yield spec, with_draft
        if spec.drafter != "none" and budget:
            smaller = [size for size in TREES if size < spec.draft_max]
            for size in smaller:
                nodes = min(spec.tree_nodes, size + 1) if spec.tree_nodes else 0
                yield replace(spec, draft_max=size, tree_nodes=nodes), with_draft
    if spec.drafter == "auto":
        yield replace(spec, drafter="none", draft=None), None


def _choices(
    spec: SpecConfig, draft: Bundle | None, kv_choices: tuple[int, ...], kv_bits: int | None, budget: bool
) -> list[_Choice]:
    # Without a budget there is nothing to give up precision for.
    bits = (kv_bits,) if kv_bits else tuple(b for b in kv_choices if b <= kv_choices[0]) if budget else kv_choices[:1]
    rows = PASS_ROWS if budget else PASS_ROWS[:1]
    return [
        _Choice(spec=one, draft=with_draft, kv_bits=b, rows=r)
        for one, with_draft in _specs(spec, draft, budget)
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
    baseline_bytes: int = 0,
    accelerator: AcceleratorOptions | None = None,
) -> RunPlan:
    """Plan a run.

    Args:
        threads: 0 leaves the number to the target.
        ctx_size: rows of the cache; 0 chooses the largest that fits, at most the model's own and at most 2048.
        kv_bits: how keys and values are kept; None chooses: the target's own, or less under a budget.
        spec: what to speculate with; None: nothing. ``auto`` is narrowed to what fits.
        baseline_bytes: what the process takes without the model; handed through to the plan, never counted.
        accelerator: which, if the device is one.

    Raises:
        UsageError: ``ctx_size`` is negative or more than the model has, the device is unknown or has no such ``kv_bits``, or
            the draft does not belong to the model.
        UnsupportedError: a budget on a GPU.
        BundleError: the draft cannot be opened.
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
    spec = spec or SpecConfig()
    draft = None if spec.draft is None else _open_draft(bundle, spec)
    planner = _Planner(
        bundle=bundle,
        module=module,
        device=device,
        threads=threads,
        budget_bytes=budget_bytes,
        bytes_per_second=bounds.bytes_per_second,
    )
    choices = _choices(spec, draft, module.kv_choices(device, bundle), kv_bits, budget_bytes is not None)
    low = ctx_size or min(high, SMALLEST_CONTEXT)
    choice, chosen = planner.best(choices, low, high)
    items = planner.items(choice, chosen)
    total = charged_bytes(items)
    fits = budget_bytes is None or total <= budget_bytes
    limits = planner.limits(choice, chosen)
    plan = Plan(
        fits=fits,
        budget_bytes=budget_bytes,
        total_bytes=total,
        items=items,
        baseline_bytes=baseline_bytes,
        ctx_size=chosen,
        kv_bits=choice.kv_bits,
        drafter=choice.spec.drafter_name,
        draft_model=choice.draft is not None,
        draft_tokens=limits.depth,
        tree_nodes=min(choice.spec.nodes, limits.nodes),
        pass_rows=limits.nodes,
        estimated_tokens_per_second=planner.speed(choice, chosen),
        # Of what was asked for, whatever the budget left of it; an accelerator is built for one context.
        fixed_baseline=_fixed_baseline(planner, choices[0], most if bounds.bytes_per_second is None else chosen),
        speculation_from_bytes=_least_with_speculation(
            planner, _choices(spec, draft, module.kv_choices(device, bundle), kv_bits, True), low
        ),
        memories=module.memories(bundle, limits, device),
        hint="" if fits else planner.hint(choice, chosen),
    )
    _log_plan(plan, choice, len(choices))
    return RunPlan(plan=plan, limits=limits, spec=choice.spec, draft=choice.draft)


def _log_plan(plan: Plan, choice: _Choice, ways: int) -> None:
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
    """Raises:
    UsageError: its tokenizer is another one.
    """
    assert spec.draft is not None
    draft = Bundle.open(bundle_folder(spec.draft))
    if draft.tokenizer_hash != bundle.tokenizer_hash:
        raise UsageError(
            f"the draft {spec.draft} has the tokenizer {draft.tokenizer_hash[:12]}, {bundle.path} has "
            f"{bundle.tokenizer_hash[:12]}: both must be made from checkpoints with one tokenizer; give another -md"
        )
    return draft


def _fixed_baseline(planner: _Planner, choice: _Choice, most: int) -> dict[str, int]:
    """Charged bytes, weights left out, of a run that plans nothing: the yardstick of the memory goals.

    A context of 1024, float16 keys and values, a tree of 64 nodes, and whole rows of float32 logits for all of them.
    """
    spec = replace(choice.spec, draft_max=_BASELINE_NODES - 1, tree_nodes=_BASELINE_NODES)
    if choice.spec.drafter == "none":
        spec = replace(spec, drafter="ngram")
    bits = 16 if 16 in planner.module.kv_choices(planner.device, planner.bundle) else choice.kv_bits
    fixed = replace(choice, spec=spec, kv_bits=bits, rows=max(PASS_ROWS))
    items = phases(planner.items(fixed, min(_BASELINE_CONTEXT, most)))["run"]
    return {name: size for name, size in items.items() if name not in ("weights", "draft_weights")}


def _least_with_speculation(planner: _Planner, choices: list[_Choice], low: int) -> int | None:
    """The least budget at which speculation still pays, by estimate; None: it never does, or was not asked for."""
    plain = max((planner.speed(c, low) for c in choices if c.spec.nodes == 1), default=0.0)
    paying = [c for c in choices if c.spec.nodes > 1 and planner.speed(c, low) > plain]
    return min((planner.total(choice, low) for choice in paying), default=None)
