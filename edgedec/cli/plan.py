"""``edgedec plan``: what a run will take, item by item, without loading the model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from edgedec.cli.console import print_json, print_table
from edgedec.cli.options import CtxSize, Device, Json, KvBits, MemoryBudget, Model, Verbose, budget_bytes, resolve_model
from edgedec.errors import BudgetError

if TYPE_CHECKING:
    from edgedec.memory import Plan

__all__ = ["plan"]


def plan(
    model: Model,
    memory_budget: MemoryBudget = None,
    ctx_size: CtxSize = 0,
    kv_bits: KvBits = None,
    device: Device = "cpu",
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Show the memory that a run will take. Exit code 4 if it does not fit the budget."""
    from edgedec.bundle import Bundle
    from edgedec.memory import MemoryMeter, format_bytes
    from edgedec.runtime.planning import make_plan
    from edgedec.runtime.targets import target_module

    budget = budget_bytes(memory_budget)
    bundle = Bundle.open(resolve_model(model))
    target_module(device)  # its libraries are part of the baseline
    baseline = MemoryMeter().baseline_bytes
    made = make_plan(
        bundle, device=device, ctx_size=ctx_size, kv_bits=kv_bits, budget_bytes=budget, baseline_bytes=baseline
    ).plan
    if json:
        data = asdict(made)
        del data["hint"]
        print_json(data)
    else:
        _print(made)
    if not made.fits:
        raise BudgetError(
            f"needs {format_bytes(made.total_bytes)} at context {made.ctx_size}, the memory budget is "
            f"{format_bytes(made.budget_bytes or 0)}; {made.hint}"
        )


def _print(plan: Plan) -> None:
    from edgedec.memory import format_bytes

    print(f"context {plan.ctx_size} tokens, KV {plan.kv_bits} bits, drafter {plan.drafter}")
    items = [(name, format_bytes(size)) for name, size in plan.items.items()]
    if plan.budget_bytes is None:
        budget = [("budget", "none")]
    else:
        budget = [("budget", format_bytes(plan.budget_bytes)), ("fits", "yes" if plan.fits else "no")]
    beside = [("beside it: Python and libraries", format_bytes(plan.baseline_bytes))]
    print_table([*items, ("total", format_bytes(plan.total_bytes)), *budget, *beside], right=(1,))
