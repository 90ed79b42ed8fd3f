"""Planning: choose drafter, tree, context, KV bits and pass size under a memory budget, before anything is loaded.

Plans are computed from the manifests of bundles only. If not even the smallest run has room for all weights, and the device
can read some of them from the disk during passes, the plan keeps as many in memory as there is room for. It is the same on
every machine; the disk's rate is measured afterwards, for the estimate of the speed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.embedded import bundle_folder
from edgedec.bundle.lending import lend_tensors
from edgedec.bundle.manifest import WEIGHTS
from edgedec.calibrated_bundle import AUTO, FULL, policy_name, with_policy
from edgedec.errors import UsageError
from edgedec.families import build_graph, context_size
from edgedec.kv.policy import KV_POLICY
from edgedec.memory.byte_sizes import format_bytes
from edgedec.memory.items import WEIGHT_ITEMS
from edgedec.memory.meter import MemoryMeter
from edgedec.memory.plan import Plan, charged_bytes, phases
from edgedec.runtime.kv_precision import automatic_bits
from edgedec.runtime.model_graph import check_main_model
from edgedec.runtime.planning.planner import PASS_ROWS, Planner, RunChoice, run_choices
from edgedec.runtime.planning.speculation import SpecConfig, verifier_traits
from edgedec.runtime.protocols import Limits
from edgedec.runtime.row_recipe import check_rows
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.targets import Bounds, check_kv_bits, driver_bytes, lends_weights, target_module
from edgedec.runtime.targets._footprint import RUNTIME
from edgedec.runtime.trees import default_tree

__all__ = ["RunPlan", "make_plan", "with_libraries"]

_LOG = logging.getLogger(__name__)

DEFAULT_CONTEXT = 2048  # tokens of context without --ctx-size, if the model has more
SMALLEST_CONTEXT = 128  # tokens to which a plan without --ctx-size may shrink the context
# Context and tree of the fixed baseline, a run without planning (docs/glossary.md).
_BASELINE_CONTEXT, _BASELINE_NODES = 1024, 64


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A plan, the limits that keep a run within it, and its settings of speculation.

    ``bundle`` is the model with the policy of keys and values that was chosen. ``drafts`` are the draft models that the plan
    has room for. ``sequences`` is the number of texts that can be written at a time, and ``text_note`` says what makes
    several of them slow; it is empty if nothing does.
    """

    bundle: Bundle
    plan: Plan
    limits: Limits
    spec: SpecConfig
    drafts: tuple[Bundle, ...]
    sequences: int = 1
    text_note: str = ""


def with_libraries(plan: Plan, meter: MemoryMeter, baseline_bytes: int) -> Plan:
    """Import what a run of ``plan`` needs beside the model, and return the plan with the baseline that it then has.

    ``baseline_bytes`` is the memory of the process before the run, which the plan reports and does not charge.
    """
    added = meter.leave_out(partial(import_module, "edgedec.host.ort")) if RUNTIME in plan.items else 0
    return replace(plan, baseline_bytes=baseline_bytes + added)


def make_plan(
    bundle: Bundle, settings: RunSettings, *, drafts: tuple[Bundle, ...] = (), acceptance: float | None = None
) -> RunPlan:
    """Plan a run.

    Args:
        bundle: the model.
        settings: the settings of the run.
        drafts: the draft models, of which only the manifests are used; none: those of ``settings.spec``.
        acceptance: expected share of right guesses, for the estimated speed; None: the usual one of the drafter.

    Raises:
        UsageError: ``ctx_size`` is negative or larger than the model's context, the device is unknown or does not support
            ``kv_bits``, the bundle does not have ``kv_policy``, or the draft model has a different tokenizer. Or the model
            is a draft head.
        BundleError: the draft model's bundle cannot be opened, or the disk cannot be measured.
    """
    check_main_model(bundle)
    if settings.kv_policy == AUTO:
        return _with_automatic_policy(bundle, settings, drafts=drafts, acceptance=acceptance)
    bundle = with_policy(bundle, settings.kv_policy)
    module = target_module(settings.device, settings.accelerator)
    check_kv_bits(module, settings.device, settings.kv_bits, bundle)
    bounds = module.bounds(bundle, settings.device, sequences=settings.sequences)
    most = _largest_context(bundle, bounds, settings.ctx_size)
    spec, budget_bytes = _with_tree(settings.spec or SpecConfig(), bundle, settings.device), settings.budget_bytes
    drafts = drafts or tuple(_open_draft(bundle, one, settings.device) for one in spec.drafts)
    planner = Planner(bundle=bundle, module=module, settings=settings, bounds=bounds, acceptance=acceptance)
    kv_choices = automatic_bits(module.kv_choices(settings.device, bundle), bundle)
    choices = run_choices(spec, drafts, kv_choices, settings.kv_bits, budget_bytes is not None)
    high = settings.ctx_size or min(most, DEFAULT_CONTEXT)
    low = settings.ctx_size or min(high, SMALLEST_CONTEXT)
    choice, context = planner.best(choices, low, high)
    items, limits = planner.items(choice, context), planner.limits(choice, context)
    check_rows(spec.writes.traits.least, limits.nodes)
    total, text_note = charged_bytes(items), _text_note(settings, bounds)
    fits = budget_bytes is None or total <= budget_bytes
    disk = planner.disk_use(choice, context) if fits else None
    plan = Plan(
        fits=fits,
        budget_bytes=budget_bytes,
        total_bytes=total,
        items=items,
        baseline_bytes=0,
        ctx_size=context,
        kv_bits=choice.kv_bits,
        whole_ctx_size=high,
        whole_kv_bits=choices[0].kv_bits,
        drafter=choice.spec.drafter_name,
        draft_model=bool(choice.drafts),
        draft_tokens=limits.depth,
        tree=choice.spec.policy,
        tree_nodes=min(choice.spec.nodes, limits.nodes),
        pass_rows=limits.nodes,
        estimated_tokens_per_second=planner.speed(choice, context, disk),
        # The baseline has the requested settings, not those that fit the budget. An accelerator is built for one context.
        fixed_baseline=_fixed_baseline(planner, choices[0], most if bounds.bytes_per_second is None else context),
        speculation_from_bytes=_least_with_speculation(
            planner, run_choices(spec, drafts, kv_choices, settings.kv_bits, True), low
        ),
        memories=planner.memories(choice, limits),
        hint="" if fits else planner.hint(choice, context),
        driver_bytes=driver_bytes(settings.device),
        notes=(
            *_draft_notes(choice.drafts, drafts),
            *(() if bounds.rings else _window_notes(bundle, settings.device, context)),
            *([text_note] if text_note else []),
        ),
        disk=disk,
        kv_policy=policy_name(bundle),
    )
    _log_plan(plan, choice, len(choices))
    return RunPlan(
        bundle=bundle,
        plan=plan,
        limits=limits,
        spec=choice.spec,
        drafts=choice.drafts,
        sequences=settings.sequences,
        text_note=text_note,
    )


def _with_tree(spec: SpecConfig, bundle: Bundle, device: str) -> SpecConfig:
    """Return the settings with the policy of trees that the run has."""
    if spec.policy or not spec.writes.traits.guesses:
        return spec
    lossless, size = verifier_traits(spec.verifier).lossless, bundle.file_bytes[WEIGHTS]
    return replace(spec, policy=default_tree(lossless, device, size))


def _with_automatic_policy(
    bundle: Bundle, settings: RunSettings, *, drafts: tuple[Bundle, ...], acceptance: float | None
) -> RunPlan:
    """Return the plan without a policy of keys and values, or that with the bundle's own if it has room for more context."""
    plan_of = partial(make_plan, settings=replace(settings, kv_policy=None), drafts=drafts, acceptance=acceptance)
    full = plan_of(with_policy(bundle, FULL))
    if settings.budget_bytes is None or policy_name(bundle) == FULL:
        return full
    own = plan_of(bundle)
    return own if _has_more_room(own.plan, full.plan) else full


def _largest_context(bundle: Bundle, bounds: Bounds, ctx_size: int) -> int:
    """Return the largest context of a model on a device, in tokens.

    Raises:
        UsageError: ``ctx_size`` is negative or larger.
    """
    most, holder = context_size(bundle.config), "the model"
    if bounds.positions is not None and bounds.positions < most:
        most, holder = bounds.positions, "the accelerator"
    if not 0 <= ctx_size <= most:
        raise UsageError(f"--ctx-size must be 1 to {most}, which is what {holder} has, not {ctx_size}")
    return most


def _has_more_room(plan: Plan, other: Plan) -> bool:
    """Return whether a plan fits and has more context than another one, or the other does not fit."""
    fits = plan.fits and all(memory.fits for memory in plan.memories)
    return fits and (not other.fits or plan.ctx_size > other.ctx_size)


def _window_notes(bundle: Bundle, device: str, ctx_size: int) -> tuple[str, ...]:
    """Return a note if layers or groups of heads have a window below the context, and the device keeps all rows."""
    states = build_graph(bundle.config).states.values()  # a board's bundle has no weights for ``bundle_graph``
    windows = [state.window for state in states if state.window is not None and state.window < ctx_size]
    if not windows:
        return ()
    parts = "layers" if bundle.config.get(KV_POLICY) is None else "groups of heads"
    return (
        f"{len(windows)} of {len(states)} {parts} see the last {max(windows)} positions only, and {device} keeps all rows "
        "of them; --device cpu with the CPU kernels (edgedec doctor) keeps those of the window",
    )


def _text_note(settings: RunSettings, bounds: Bounds) -> str:
    """Return a note if there are more texts than a pass has rows of; empty: there are not."""
    if bounds.sequences is None or settings.sequences <= bounds.sequences:
        return ""
    passes = -(-settings.sequences // bounds.sequences)
    return (
        f"a pass on {settings.device} has rows of {bounds.sequences} texts at most, so {settings.sequences} texts take "
        f"{passes} passes for a token each; --parallel {bounds.sequences} takes one, and so does an accelerator with more "
        "slots (--configuration)"
    )


def _draft_notes(chosen: tuple[Bundle, ...], given: tuple[Bundle, ...]) -> tuple[str, ...]:
    """Return a note for each of several draft models that the plan leaves out; ``Plan.draft_model`` tells it of one."""
    if len(given) < 2:
        return ()
    return tuple(
        f"the plan leaves out the draft model {draft.path}: by estimate it does not fit, or does not pay"
        for draft in given[len(chosen) :]
    )


def _log_plan(plan: Plan, choice: RunChoice, ways: int) -> None:
    budget = "no budget" if plan.budget_bytes is None else f"budget {format_bytes(plan.budget_bytes)}"
    guesses = "no guesses"
    if choice.spec.drafter != "none":
        count = len(choice.drafts)
        models = f"{count or 'no'} draft model{'s' * (count > 1)}"
        guesses = f"drafter {choice.spec.drafter_name} with {models}, {choice.spec.policy} of {plan.tree_nodes} nodes"
    _LOG.info(
        "plan, the best of %d: %s charged at most, %s; context %d, keys and values of %d bits (%s), passes of %d rows; %s",
        *(ways, format_bytes(plan.total_bytes), budget, plan.ctx_size, plan.kv_bits, plan.kv_policy, plan.pass_rows),
        guesses,
    )


def _open_draft(bundle: Bundle, name: str | Path, device: str) -> Bundle:
    """Return the draft model's bundle.

    Raises:
        UsageError: its tokenizer is not the model's, or it borrows tensors that the model does not have.
    """
    draft = Bundle.open(bundle_folder(name), verify=bundle.verify, borrows=True)
    if draft.tokenizer_hash != bundle.tokenizer_hash:
        raise UsageError(
            f"the draft model {name} has the tokenizer {draft.tokenizer_hash[:12]}, {bundle.path} has "
            f"{bundle.tokenizer_hash[:12]}: both must be made from checkpoints with one tokenizer; give another -md"
        )
    return lend_tensors(draft, bundle, resident=lends_weights(device))


def _fixed_baseline(planner: Planner, choice: RunChoice, most: int) -> dict[str, int]:
    """Return the charged bytes by item, without weights, of a run without planning, with which memory goals are compared.

    It has a context of 1024, float16 keys and values, and a tree of 64 nodes with whole rows of float32 logits.
    """
    spec = SpecConfig(drafter="ngram") if choice.spec.drafter == "none" else choice.spec
    spec = replace(spec, draft_max=_BASELINE_NODES - 1, tree_nodes=_BASELINE_NODES)
    bits = 16 if 16 in planner.module.kv_choices(planner.settings.device, planner.bundle) else choice.kv_bits
    fixed = replace(choice, spec=spec, kv_bits=bits, rows=max(PASS_ROWS))
    items = phases(planner.items(fixed, min(_BASELINE_CONTEXT, most)))["run"]
    return {name: size for name, size in items.items() if name not in WEIGHT_ITEMS}


def _least_with_speculation(planner: Planner, choices: list[RunChoice], low: int) -> int | None:
    """Return the smallest budget at which speculation pays by estimate; None if it never pays or is not requested."""
    plain = max((planner.speed(c, low) for c in choices if c.spec.nodes == 1), default=0.0)
    paying = [c for c in choices if c.spec.nodes > 1 and planner.speed(c, low) > plain]
    return min((planner.total(choice, low) for choice in paying), default=None)
