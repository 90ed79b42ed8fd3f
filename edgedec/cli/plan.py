"""``edgedec plan``: show the planned memory of a run by item, without loading the model."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from edgedec import api
from edgedec.cli.console import print_json, print_table
from edgedec.cli.options import Json, Verbose, option, resolve_model
from edgedec.cli.run_options import PlanOptions, command_line
from edgedec.errors import BudgetError, UsageError

if TYPE_CHECKING:
    from edgedec.memory.plan import DiskUse, Plan
    from edgedec.runtime.planning.speculation import SpecConfig

__all__ = ["plan"]

_PHASES = {"load": "loading", "load_draft": "loading the draft", "run": "running"}


@command_line
def plan(
    options: PlanOptions,
    advise_draft: Annotated[
        bool,
        option("--advise-draft", help="Say instead which size of draft model would pay, from a law of acceptance."),
    ] = False,
    draft: Annotated[
        list[str] | None,
        option(
            "--draft",
            metavar="BUNDLE",
            help="With --advise-draft: measure this draft and fit the law to it; repeat for at least three sizes.",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        option(
            "--text",
            metavar="FILE",
            help="With --draft: text to measure on, line by line; default: text that the model writes.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, option("--plot", metavar="FILE", help="With --advise-draft: draw the law, as PNG, SVG or PDF.")
    ] = None,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Show the planned memory of a run.

    The exit code is 4 if it does not fit the budget.
    """
    if advise_draft:
        if options.kv_policy is not None:
            raise UsageError("--kv-policy is not for --advise-draft, which plans the policy that the bundle has")
        from edgedec.cli._draft_advice import advise

        advise(options, drafts=draft or (), text=text, plot=plot, json=json)
        return
    if draft or text is not None or plot is not None:
        raise UsageError("--draft, --text and --plot are for --advise-draft; give it, or leave them out")
    spec, device = options.spec(), options.device
    settings = options.settings(spec=spec)
    from edgedec.bundle.bundle import Bundle
    from edgedec.memory.byte_sizes import format_bytes
    from edgedec.memory.meter import resident_bytes
    from edgedec.runtime.planning.plan_search import planned_budget
    from edgedec.runtime.planning.planning import make_plan
    from edgedec.runtime.targets import target_module

    bundle, accelerator = resolve_model(options.model), options.accelerator()
    target_module(device, accelerator)  # its libraries count as resident, the planner's work does not
    resident, budget, size = resident_bytes(), options.find_budget(), options.budget_bytes
    if size is None and budget.limited:
        size = planned_budget(partial(make_plan, Bundle.open(bundle)), settings, budget)
    made = api.plan_model(bundle, replace(settings, budget_bytes=size, accelerator=accelerator))
    if json:
        data = asdict(made) | {"estimated_tokens_per_second": round(made.estimated_tokens_per_second, 3)}
        data |= {"phases": {name: sum(items.values()) for name, items in made.phases.items()}}
        del data["hint"]
        data |= {"budget": budget.as_json()}
        print_json(data | {"decoder": spec.writes.name, "resident_bytes": resident})
    else:
        _print(made, spec, device, resident)
        if budget.bound_by is not None and budget.limited and budget.bound_by.source != "flag":
            print(f"for a run that begins now, {budget.explain()}")
    made.require_memories()
    if not made.fits:
        raise BudgetError(
            f"needs {format_bytes(made.total_bytes)} at context {made.ctx_size}, the memory budget is "
            f"{format_bytes(made.budget_bytes or 0)}; {made.hint}"
        )


def _print(plan: Plan, spec: SpecConfig, device: str, resident: int) -> None:
    from edgedec.memory.byte_sizes import format_bytes
    from edgedec.memory.items import WEIGHT_ITEMS

    policy = "" if plan.kv_policy == "full" else f", policy {plan.kv_policy}"
    print(f"context {plan.ctx_size} tokens, KV {plan.kv_bits} bits{policy}, passes of {plan.pass_rows} rows at most")
    print(_drafting(plan, spec))
    print(_speed(plan, device))
    if plan.reduced:
        print(f"reduced to fit: {plan.reduced}")
    print()
    if plan.disk is not None:
        print(_streaming(plan.disk))
    fixed = plan.fixed_baseline
    columns = [*plan.phases.values(), fixed]
    names = dict.fromkeys([*plan.items, *fixed])
    beside_weights = [sum(size for name, size in column.items() if name not in WEIGHT_ITEMS) for column in columns]
    rows: list[tuple[str, ...]] = [
        ("", *(_PHASES[name] for name in plan.phases), "fixed baseline"),
        *((name, *(_cell(column.get(name)) for column in columns)) for name in names),
        ("sum", *(format_bytes(sum(column.values())) for column in columns[:-1]), ""),
        ("sum without weights", *map(format_bytes, beside_weights)),
        ("total", format_bytes(plan.total_bytes)),
        ("budget", "none" if plan.budget_bytes is None else format_bytes(plan.budget_bytes)),
    ]
    if plan.budget_bytes is not None:
        rows.append(("fits", "yes" if plan.fits else "no"))
    if plan.speculation_from_bytes is not None:
        rows.append(("speculation pays from (estimated)", format_bytes(plan.speculation_from_bytes)))
    rows.append(("beside it: Python and libraries", format_bytes(plan.baseline_bytes)))
    if plan.driver_bytes:
        rows.append(("beside it: the GPU's driver (measured)", format_bytes(plan.driver_bytes)))
    code = max(0, resident - plan.baseline_bytes)
    if resident:
        rows.append(("and their code, mapped from files", format_bytes(code)))
        beside = plan.baseline_bytes + plan.driver_bytes + code
        rows.append(("the whole process, about", format_bytes(plan.total_bytes + beside)))
    width = 1 + len(columns)
    print_table([(*row, *[""] * (width - len(row))) for row in rows], right=range(1, width))
    for memory in plan.memories:
        has = "" if memory.has_bytes is None else f" of {format_bytes(memory.has_bytes)}"
        print(f"{memory.name}: {format_bytes(memory.used_bytes)}{has} ({memory.source})")
    for note in plan.notes:
        print(note)
    print(
        "\ntotal: the largest of the sums, each of what is there at once. It is what is charged, and what a budget limits"
    )
    print("fixed baseline: what a run without a plan takes beside its weights, at a context of 1024 tokens,")
    print("KV of 16 bits, a tree of 64 nodes and all of its logits, as far as model and device have these")


def _speed(plan: Plan, device: str) -> str:
    """Return the estimated speed as text, and for a processor what it is a bound of."""
    rate = plan.estimated_tokens_per_second
    text = f"estimated, not measured: {rate:.{0 if rate >= 10 else 2}f} tokens/s"
    if device != "cpu" or plan.disk is not None:
        return text
    return (
        f"{text}, a lower bound for a quiet PC with two memory channels and half of the\ncontext in use; a model that fits "
        "the processor's caches may be some times faster. `edgedec bench` measures"
    )


def _cell(size: int | None) -> str:
    from edgedec.memory.byte_sizes import format_bytes

    return "" if size is None else format_bytes(size)


def _streaming(disk: DiskUse) -> str:
    """Return what each pass reads from the disk, and what that means for its time, as text."""
    from edgedec.memory.byte_sizes import format_bytes

    how = "direct reads" if disk.direct else "reads through the page cache, because the file system has no direct ones"
    passes = ", ".join(f"{rows}: {1000 * seconds:.1f}" for rows, seconds in disk.pass_seconds.items())
    return (
        f"weights above the budget: each pass reads {format_bytes(disk.bytes_per_pass)} from the disk, which gives "
        f"{format_bytes(round(disk.bytes_per_second))}/s ({how}, measured)\n"
        f"a pass takes, by its rows, in ms (estimated from it): {passes}\n"
    )


def _drafting(plan: Plan, spec: SpecConfig) -> str:
    """Return the drafter and its limits as text."""
    writes = spec.writes
    if not writes.traits.guesses:
        both = "; the speed is that of both models together" if spec.drafter != "none" else ""
        return f"decoder {writes.name}: {writes.traits.summary}{both}"
    if plan.drafter == "none":
        return "drafter none"
    model = (", with the draft model" if plan.draft_model else ", without a draft model") * (plan.drafter == "auto")
    return (
        f"drafter {plan.drafter}{model}: {plan.draft_tokens} guesses ahead at most; "
        f"tree {plan.tree} of {plan.tree_nodes} nodes at most"
    )
