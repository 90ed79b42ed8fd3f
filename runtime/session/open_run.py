"""Plan the run of a session, and measure the process from the moment at which its memory belongs to the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.embedded import bundle_folder
from edgedec.bundle.manifest import WEIGHTS
from edgedec.bundle.verified import is_new
from edgedec.memory.heap import trim_heap, use_one_heap
from edgedec.memory.meter import MemoryMeter
from edgedec.plugins import load, names
from edgedec.runtime.decoders._plugin import choose_decoder
from edgedec.runtime.kernels.weights.layout_cache import charged_folders
from edgedec.runtime.model_graph import forget_graphs
from edgedec.runtime.planning.planning import RunPlan, make_plan, with_libraries
from edgedec.runtime.planning.speculation import DRAFTERS, POLICIES, VERIFIERS, SpecConfig, verifier_traits
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.run_sizes import LEAST_DRAFT_BITS
from edgedec.runtime.session.model_folder import open_model
from edgedec.runtime.targets import driver_bytes, target_module
from edgedec.runtime.trees import DEFAULTS

__all__ = ["import_first_start", "import_plugins", "open_run"]


def open_run(path: str | Path, settings: RunSettings, *, verify: bool) -> tuple[RunPlan, RunSettings, MemoryMeter]:
    """Open a model and plan its run; no weight is loaded.

    Args:
        path, settings, verify: see ``Session.load``.

    Returns:
        The plan, the settings with what the model's folder adds to them, and the meter, which runs and must be closed.

    Raises:
        BudgetError: no plan fits the budget.
        BundleError, UnsupportedError, DeviceError, UsageError: ``Bundle.open`` or ``make_plan`` raised it.
    """
    folder, spec = bundle_folder(path), settings.spec or SpecConfig()
    folders = tuple(map(bundle_folder, spec.drafts))
    spec = replace(spec, draft=folders)
    # These import modules, which belong to the baseline and are not charged to the model.
    target_module(settings.device, settings.accelerator)
    import_plugins(spec)
    if verify or any(is_new(one / WEIGHTS) for one in (folder, *folders)) or any(map(_borrows, folders)):
        import_first_start()
    baseline = MemoryMeter().baseline_bytes
    driver_bytes(settings.device)  # a driver's own memory is beside the plan, so it is opened before the meter
    charged = charged_folders(folder)
    for draft in folders:
        charged = (*charged, *charged_folders(draft))
    use_one_heap()
    meter = MemoryMeter(charged)
    meter.start()
    try:
        bundle, accelerator = open_model(folder, settings.device, settings.accelerator, verify=verify)
        settings = replace(settings, spec=spec, accelerator=accelerator)
        run = make_plan(bundle, settings)
        run.plan.require()
        forget_graphs(run.bundle, run.plan.kv_bits)
        for one in run.drafts:
            forget_graphs(one, max(run.plan.kv_bits, LEAST_DRAFT_BITS))
        run = replace(run, plan=with_libraries(run.plan, meter, baseline))
        meter.mark()
        trim_heap()  # because the planner and the self-test of the operators have freed blocks
    except BaseException:
        meter.close()
        raise
    return run, settings, meter


def _borrows(draft: Path) -> bool:
    """Return whether a draft model borrows tensors of its target, which are hashed then."""
    return Bundle.open(draft, weights=False, borrows=True).manifest.borrows is not None


def import_first_start() -> None:
    """Import the libraries that check and convert a new bundle, and that later starts do without."""
    import hashlib  # noqa: F401


def import_plugins(spec: SpecConfig) -> None:
    """Import the modules that the opening of most models and their first texts import by name.

    Where Python keeps no compiled modules (PYTHONDONTWRITEBYTECODE, read-only folders), their compilation takes more than
    a megabyte, which would be charged to the model.
    """
    load("edgedec.families", "llama")
    for name in names("edgedec.onnx.ops"):
        load("edgedec.onnx.ops", name)
    for name in {"none", "ngram", spec.drafter if isinstance(spec.drafter, str) else "none"}:
        load(DRAFTERS, name)
    for name in {spec.policy} if spec.policy else set(DEFAULTS.values()):
        load(POLICIES, name)
    for name in (spec.decoder, SpecConfig.decoder):  # the planner compares a run with one that makes no guesses
        choose_decoder(name)
    for name in {spec.verifier, SpecConfig.verifier, "greedy"}:
        load(VERIFIERS, name)
    if verifier_traits(spec.verifier).children in ("drawn", "independent"):
        import edgedec.runtime.trees._independent  # noqa: F401  # NumPy's generators, which take 1.4 MiB
