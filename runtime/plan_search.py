"""Search over plans: the budget that a run is planned with, and the number of texts that it can write at a time.

Both functions take ``plan``, which is ``make_plan`` with the model and the settings of the run:
``functools.partial(make_plan, bundle, device=...)``. Both may raise the errors of ``make_plan``.
"""

from __future__ import annotations

from typing import Protocol

from edgedec.memory_budget import Budget
from edgedec.runtime.planning import RunPlan
from edgedec.runtime.speculation import SpecConfig
from edgedec.runtime.targets import GPU_DEVICES, is_accelerator

__all__ = ["PlanFunction", "most_sequences", "planned_budget", "same_settings"]


class PlanFunction(Protocol):
    """``make_plan`` with everything but the budget and the number of texts."""

    def __call__(self, *, budget_bytes: int | None = None, sequences: int = 1) -> RunPlan:
        """Return the plan for a budget and a number of texts."""


def planned_budget(plan: PlanFunction, budget: Budget, *, device: str = "cpu", sequences: int = 1) -> int | None:
    """Return the ``budget_bytes`` with which a run is planned; None: it is planned without a budget.

    If the user set a limit, it is the least of all limits, and a run that does not fit is refused. A control group's limit
    alone never refuses a run: one that fits it is planned as without a limit, another one is planned under it, and one that
    cannot be made to fit is planned as without a limit, too, because the kernel can take back its mapped weights. It counts
    for models that run in this process's memory only.

    Args:
        plan: plans the run.
        budget: the limits.
        device: the device of the run.
        sequences: number of texts that can be written at a time.
    """
    size = budget.budget_bytes
    if size is None or budget.has_flag:
        return size
    if device in GPU_DEVICES or is_accelerator(device):
        return None
    for limit in (None, size):
        if plan(budget_bytes=limit, sequences=sequences).plan.total_bytes <= size:
            return limit
    return None


def most_sequences(plan: PlanFunction, most: int, *, device: str = "cpu", budget_bytes: int | None = None) -> int:
    """Return the largest number of texts, 1 to ``most``, that can be written at a time as a single one would be.

    That is, with the context, the KV bits and the speculation that the plan for one text has under the same budget.

    Args:
        plan: plans the run.
        most: upper bound of the result.
        device: the device of the run; an accelerator writes one text at a time.
        budget_bytes: maximum memory of the model in bytes; None: no limit.
    """
    if is_accelerator(device):
        return 1

    one = plan(budget_bytes=budget_bytes)
    runs = (plan(budget_bytes=budget_bytes, sequences=count) for count in range(most, 1, -1))
    return next((run.sequences for run in runs if same_settings(run, one)), 1)


def same_settings(run: RunPlan, other: RunPlan) -> bool:
    """Return whether both plans fit and have the same context, KV bits and speculation."""

    def settings(run: RunPlan) -> tuple[int, int, SpecConfig, bool] | None:
        return (run.limits.positions, run.plan.kv_bits, run.spec, run.plan.draft_model) if run.plan.fits else None

    return settings(run) == settings(other) is not None
