"""Choose context and pass size under a memory budget, from manifests alone: nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgedec.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.families import build_graph
from edgedec.memory import Plan, format_bytes, largest_context
from edgedec.runtime.protocols import Limits
from edgedec.runtime.targets import target_module

__all__ = ["RunPlan", "make_plan"]

DEFAULT_CONTEXT = 2048  # without --ctx-size, if the model has more
SMALLEST_CONTEXT = 128  # what a plan may shrink the context to, if the model has more
PASS_ROWS = (32, 8, 1)  # rows of a prefill pass, best first

# The tokenizers library keeps some 16 bytes for each byte of tokenizer.json, and the parsed JSON passes through.
_TOKENIZER_FACTOR, _TOKENIZER_BYTES = 24, 1 << 20
# The interpreter's own growth: streams, sampling, the text, threads.
_HOST_BYTES = 3 << 20
_SAMPLING_COPIES = 6  # float64 rows of the vocabulary


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A plan and the limits that keep a run inside it."""

    plan: Plan
    limits: Limits


def _items(bundle: Bundle, module: Any, limits: Limits) -> dict[str, int]:
    vocab = int(bundle.config["vocab_size"])
    return {
        **module.footprint(bundle, limits),
        "tokenizer": _TOKENIZER_BYTES + _TOKENIZER_FACTOR * bundle.file_bytes["tokenizer.json"],
        "sampling": _SAMPLING_COPIES * 8 * vocab,
        "host": _HOST_BYTES,
    }


def make_plan(
    bundle: Bundle, *, device: str = "cpu", ctx_size: int = 0, budget_bytes: int | None = None, baseline_bytes: int = 0
) -> RunPlan:
    """Plan a run.

    Args:
        ctx_size: rows of the cache; 0 chooses the largest that fits, at most the model's or 2048.

    Raises:
        UsageError: ``ctx_size`` is negative or more than the model has.
    """
    module = target_module(device)
    state_bits = {state.bits for state in build_graph(bundle.config).states.values()}
    most = int(bundle.config.get("max_position_embeddings", DEFAULT_CONTEXT))
    if not 0 <= ctx_size <= most:
        raise UsageError(f"--ctx-size must be 1 to {most}, which is what the model has, not {ctx_size}")
    high = ctx_size or min(most, DEFAULT_CONTEXT)
    low = ctx_size or min(high, SMALLEST_CONTEXT)

    def limits(ctx: int, rows: int) -> Limits:
        return Limits(nodes=min(rows, ctx), depth=0, positions=ctx, budget_bytes=budget_bytes)

    def total(ctx: int, rows: int) -> int:
        return sum(_items(bundle, module, limits(ctx, rows)).values())

    chosen, rows = high, PASS_ROWS[0]
    if budget_bytes is not None:
        budget = budget_bytes
        for rows in PASS_ROWS:
            found = largest_context(lambda ctx, rows=rows: total(ctx, rows), low=low, high=high, budget_bytes=budget)  # type: ignore[misc]
            if found is not None:
                chosen = found
                break
        else:
            chosen, rows = low, PASS_ROWS[-1]
    items = _items(bundle, module, limits(chosen, rows))
    fits = budget_bytes is None or sum(items.values()) <= budget_bytes
    hint = ""
    if not fits and budget_bytes is not None:
        smaller = largest_context(lambda ctx: total(ctx, 1), low=1, high=chosen, budget_bytes=budget_bytes)
        least = total(chosen, 1)
        hint = f"try --memory-budget {-(-least // (1 << 20))}MiB" + (
            f", or --ctx-size {smaller}" if smaller else f" (even a context of 1 needs {format_bytes(total(1, 1))})"
        )
    plan = Plan(
        fits=fits,
        budget_bytes=budget_bytes,
        total_bytes=sum(items.values()),
        items=items,
        baseline_bytes=baseline_bytes,
        ctx_size=chosen,
        kv_bits=max(state_bits),
        drafter="none",
        draft_tokens=0,
        hint=hint,
    )
    return RunPlan(plan=plan, limits=limits(chosen, rows))


