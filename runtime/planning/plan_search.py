"""Search over plans: the budget that a run is planned with, and the number of texts that it can write at a time.

Both functions take ``plan``, which is ``functools.partial(make_plan, bundle)``, and may raise the errors of ``make_plan``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edgedec.memory.budget import Budget
from edgedec.runtime.planning.planning import RunPlan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.targets import GPU_DEVICES, is_accelerator

__all__ = ["PlanFunction", "most_sequences", "planned_budget", "same_settings"]

PlanFunction = Callable[[RunSettings], RunPlan]  # ``make_plan`` of one bundle


def planned_budget(plan: PlanFunction, settings: RunSettings, budget: Budget) -> int | None:
    """Return the ``budget_bytes`` with which a run is planned; None: it is planned without a budget.

    If the user set a limit, it is the least of all limits, and a run that does not fit is refused. A control group's limit
    alone never refuses a run: one that fits it is planned as without a limit, another one is planned under it, and one that
    cannot be made to fit is planned as without a limit, too, because the kernel can take back its mapped weights. It counts
    for models that run in this process's memory only.

    Args:
        plan: plans the run.
        settings: the settings of the run; their budget is not used.
        budget: the limits.
    """
    size = budget.budget_bytes
    if size is None or budget.has_flag:
        return size
    if settings.device in GPU_DEVICES or is_accelerator(settings.device):
        return None
    for limit in (None, size):
        if plan(replace(settings, budget_bytes=limit)).plan.total_bytes <= size:
            return limit
    return None


def most_sequences(plan: PlanFunction, settings: RunSettings, most: int) -> int:
    """Return the largest number of texts, 1 to ``most``, that can be written at a time as a single one would be.

    That is, with the context, the KV bits and the speculation that the plan for one text has under the same budget.

    Args:
        plan: plans the run.
        settings: the settings of the run; their number of texts is not used. An accelerator writes one text at a
            time where no number is asked for, because each further one needs more of it.
        most: upper bound of the result.
    """
    if is_accelerator(settings.device):
        return 1
    one = plan(replace(settings, sequences=1))
    runs = (plan(replace(settings, sequences=count)) for count in range(most, 1, -1))
    return next((run.sequences for run in runs if same_settings(run, one)), 1)


def same_settings(run: RunPlan, other: RunPlan) -> bool:
    """Return whether both plans fit and have the same context, KV bits and speculation."""

    def settings(run: RunPlan) -> tuple[int, int, SpecConfig, bool] | None:
        return (run.limits.positions, run.plan.kv_bits, run.spec, run.plan.draft_model) if run.plan.fits else None

    return settings(run) == settings(other) is not None
