"""Choose context and pass size under a memory budget, from manifests alone: nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import context_size
from edgedec.memory import Plan, format_bytes, largest_context
from edgedec.plugins import load
from edgedec.runtime.protocols import Drafter, Limits
from edgedec.runtime.targets import GPU_DEVICES, TargetModule, check_kv_bits, target_module

__all__ = ["RunPlan", "make_plan"]

DEFAULT_CONTEXT = 2048  # without --ctx-size, if the model has more
SMALLEST_CONTEXT = 128  # what a plan may shrink the context to by itself, if the model has more
DRAFTER = "none"  # the only one so far
PASS_ROWS = (32, 8, 1)  # rows of a prefill pass, best first

# Measured: the tokenizers library keeps 16 to 22 bytes for each byte of tokenizer.json.
_TOKENIZER_FACTOR, _TOKENIZER_BYTES = 24, 1 << 20
_HOST_BYTES = 3 << 20  # the interpreter's own growth: text, streams, the template engine, threads
_SAMPLING_ROWS = 6  # float64 copies of a row of logits


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A plan, and the limits that keep a run inside it."""

    plan: Plan
    limits: Limits


@dataclass(frozen=True, kw_only=True)
class _Planner:
    bundle: Bundle
    module: TargetModule
    drafter: Drafter
    device: str
    widest: int  # rows of a pass that the device takes
    threads: int
    kv_bits: int
    budget_bytes: int | None

    def limits(self, ctx_size: int, rows: int) -> Limits:
        return Limits(
            nodes=min(rows, ctx_size, self.widest), depth=0, positions=ctx_size, budget_bytes=self.budget_bytes
        )

    def items(self, ctx_size: int, rows: int) -> dict[str, int]:
        return {
            **self.module.footprint(
                self.bundle,
                self.limits(ctx_size, rows),
                device=self.device,
                threads=self.threads,
                kv_bits=self.kv_bits,
            ),
            **self.drafter.footprint(self.limits(ctx_size, rows)),
            "tokenizer": _TOKENIZER_BYTES + _TOKENIZER_FACTOR * self.bundle.file_bytes["tokenizer.json"],
            "sampling": _SAMPLING_ROWS * 8 * int(self.bundle.config["vocab_size"]),
            "host": _HOST_BYTES,
        }

    def total(self, ctx_size: int, rows: int) -> int:
        return sum(self.items(ctx_size, rows).values())

    def choose(self, low: int, high: int) -> tuple[int, int]:
        """(context, rows of a pass): the widest pass with the largest context that fits; the smallest if none does."""
        if self.budget_bytes is None:
            return high, PASS_ROWS[0]
        for rows in PASS_ROWS:
            found = self._largest(rows, low, high)
            if found is not None:
                return found, rows
        return low, PASS_ROWS[-1]

    def _largest(self, rows: int, low: int, high: int) -> int | None:
        assert self.budget_bytes is not None
        return largest_context(
            lambda ctx_size: self.total(ctx_size, rows), low=low, high=high, budget_bytes=self.budget_bytes
        )

    def hint(self, ctx_size: int) -> str:
        """The settings nearest to ``ctx_size`` and the budget that do fit."""
        rows = PASS_ROWS[-1]
        need = -(-self.total(ctx_size, rows) // (1 << 20))
        smaller = self._largest(rows, 1, ctx_size)
        if smaller is None:
            return f"try --memory-budget {need}MiB (even a context of 1 needs {format_bytes(self.total(1, rows))})"
        return f"try --ctx-size {smaller}, or --memory-budget {need}MiB"


def make_plan(
    bundle: Bundle,
    *,
    device: str = "cpu",
    threads: int = 0,
    ctx_size: int = 0,
    kv_bits: int | None = None,
    budget_bytes: int | None = None,
    baseline_bytes: int = 0,
) -> RunPlan:
    """Plan a run.

    Args:
        ctx_size: rows of the cache; 0 chooses the largest that fits, at most the model's own and at most 2048.
        threads: 0 leaves the number to the target.
        kv_bits: how keys and values are kept; None leaves it to the target.
        baseline_bytes: what the process takes without the model; handed through to the plan, never counted.

    Raises:
        UsageError: ``ctx_size`` is negative or more than the model has, or the device is unknown or has no such
            ``kv_bits``.
        UnsupportedError: a budget on a GPU.
    """
    module = target_module(device)
    check_kv_bits(module, device, kv_bits)
    most = context_size(bundle.config)
    if not 0 <= ctx_size <= most:
        raise UsageError(f"--ctx-size must be 1 to {most}, which is what the model has, not {ctx_size}")
    high = ctx_size or min(most, DEFAULT_CONTEXT)
    if budget_bytes is not None and device in GPU_DEVICES:
        raise UnsupportedError(
            f"a memory budget cannot be kept on {device}: the driver's own memory is not known beforehand; "
            "leave --memory-budget out, or use --device cpu"
        )
    widest = module.widest_pass(device) or PASS_ROWS[0]
    drafter: Drafter = load("edgedec.runtime.drafters", DRAFTER).create()
    planner = _Planner(
        bundle=bundle,
        module=module,
        drafter=drafter,
        device=device,
        widest=widest,
        threads=threads,
        kv_bits=kv_bits or module.kv_choices(device)[0],
        budget_bytes=budget_bytes,
    )
    chosen, rows = planner.choose(ctx_size or min(high, SMALLEST_CONTEXT), high)
    items = planner.items(chosen, rows)
    total = sum(items.values())
    fits = budget_bytes is None or total <= budget_bytes
    plan = Plan(
        fits=fits,
        budget_bytes=budget_bytes,
        total_bytes=total,
        items=items,
        baseline_bytes=baseline_bytes,
        ctx_size=chosen,
        kv_bits=planner.kv_bits,
        drafter=DRAFTER,
        draft_tokens=planner.limits(chosen, rows).depth,
        hint="" if fits else planner.hint(chosen),
    )
    return RunPlan(plan=plan, limits=planner.limits(chosen, rows))
