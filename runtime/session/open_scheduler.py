"""Open the decoders of a planned run, and the engine and the scheduler that they share."""

from __future__ import annotations

from functools import partial

from edgedec.runtime.decoders._cached import CachedDecoder
from edgedec.runtime.decoders._plugin import DecoderParts
from edgedec.runtime.drafters._releasing import ReleasingDrafter
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.scheduler import Scheduler
from edgedec.runtime.planning.planning import RunPlan
from edgedec.runtime.planning.speculation import SpecConfig, create_drafter, verifier_traits
from edgedec.runtime.protocols import Drafter, State, Target
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.targets import host_device

__all__ = ["open_scheduler", "run_drafter"]


def run_drafter(run: RunPlan, settings: RunSettings) -> Drafter:
    """Return the drafter of a run, without a loaded draft model."""
    create = partial(
        create_drafter,
        run.spec.drafter,
        run.drafts,
        device=host_device(settings.device),
        threads=settings.threads,
        samples=run.spec.samples,
        kv_bits=run.plan.kv_bits,
    )
    return ReleasingDrafter(create) if _may_release(run.spec) else create()


def open_scheduler(
    target: Target,
    state: State,
    run: RunPlan,
    drafter: Drafter,
    *,
    vocab_limit: int,
    overlaps: bool,
) -> Scheduler:
    """Return the scheduler of a run, with a decoder for each text that can be written at a time.

    All decoders share the drafter and what is learned about the duration of passes.

    Args:
        target: runs the passes.
        state: cache of the first text; the others are opened here.
        run: plan of the run.
        drafter: its drafter, ``run_drafter``.
        vocab_limit: number of ids that the tokenizer knows.
        overlaps: True if the host may draft while the target runs a pass.
    """
    spec = run.spec
    cost = ObservedCost(target.cost_model)
    writes, decoders = spec.writes, list[CachedDecoder]()
    for number in range(run.sequences):
        cache = target.open(run.limits) if number else state
        parts = DecoderParts(
            target=target,
            state=cache,
            drafter=drafter,
            cost=cost,
            vocab_limit=vocab_limit,
            overlaps=overlaps,
            tree_nodes=spec.nodes,
        )
        decoder = writes.create(parts)
        decoder.open_draft(run.limits)
        decoders.append(decoder)
    engine = Engine(
        target,
        rows=run.limits.batch_rows or run.limits.nodes,
        cost=cost,
        together=run.sequences == 1 or target.info.joins,
    )
    return Scheduler(target, engine, decoders, run.limits)


def _may_release(spec: SpecConfig) -> bool:
    """Return True if texts stay the same without the drafter, and it can be made again from its name."""
    if not spec.writes.traits.guesses or spec.drafter == "none" or not isinstance(spec.drafter, str):
        return False
    return verifier_traits(spec.verifier).lossless == "exact"
