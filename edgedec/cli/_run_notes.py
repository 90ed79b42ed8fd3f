"""Lines on stderr about what the planner decided for a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgedec.cli.console import note

if TYPE_CHECKING:
    from edgedec.memory.budget import Budget
    from edgedec.memory.plan import Plan
    from edgedec.runtime.planning.planning import RunPlan
    from edgedec.runtime.planning.speculation import SpecConfig

__all__ = ["note_disk", "note_drafts", "note_limit", "note_policy", "note_texts"]


def note_limit(plan: Plan, budget: Budget) -> None:
    """Say on stderr what the plan has reduced, and what a control group's limit, which the user did not set, means."""
    from edgedec.memory.byte_sizes import format_bytes

    size = budget.budget_bytes
    if plan.reduced:
        note(f"{plan.reduced}, because {budget.explain()}")
    if size is None or budget.has_flag:
        return
    if plan.total_bytes > size:
        note(
            f"this run may take {format_bytes(plan.total_bytes)}, and {budget.explain()}: it may be slow, or the system may "
            "end it; -c with a smaller context, or a smaller model, takes less"
        )


def note_policy(plan: Plan, request: str | None) -> None:
    """Say on stderr which policy of keys and values the planner has chosen, because the text depends on it."""
    if request == "auto":
        why = (
            "the full cache has less room" if plan.kv_policy != "full" else "the full cache fits, or there is no policy"
        )
        files = "" if plan.kv_policy == "full" else _files(plan)
        note(f"keys and values: {plan.kv_policy}, because {why}{files}")


def _files(plan: Plan) -> str:
    """Return what a run writes to the disk, as the end of a sentence."""
    from edgedec.memory.byte_sizes import format_bytes

    return "".join(f"; it takes {format_bytes(use.used_bytes)} of {use.name}" for use in plan.memories)


def note_drafts(run: RunPlan, spec: SpecConfig) -> None:
    """Say on stderr which of several draft models of ``spec`` the plan leaves out."""
    if len(spec.drafts) > 1:
        for draft in spec.drafts[len(run.drafts) :]:
            note(f"the plan leaves out the draft model {draft}: by estimate it does not fit, or does not pay")


def note_texts(run: RunPlan) -> None:
    """Say on stderr why several texts at a time are slower than they could be."""
    if run.text_note:
        note(run.text_note)


def note_disk(plan: Plan) -> None:
    """Say on stderr that weights are read from the disk, which explains the speed."""
    from edgedec.memory.byte_sizes import format_bytes

    if plan.disk is not None:
        note(
            f"the weights are larger than the memory budget: each pass reads {format_bytes(plan.disk.bytes_per_pass)} of "
            f"them from the disk, which gives {format_bytes(round(plan.disk.bytes_per_second))}/s (measured)"
        )
