"""``edgedec bench``: measured speed of a bundle, or of a model's shape with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.cli.model_options import ModelWord, one_model
from edgedec.cli.options import (
    Device,
    DraftMax,
    Json,
    KvPolicy,
    ModelDraft,
    SpecTree,
    SpecType,
    Temp,
    Threads,
    TreeNodes,
    Verbose,
    VerifierName,
    option,
    resolve_model,
)
from edgedec.cli.run_options import PlanOptions
from edgedec.errors import BundleError, UnsupportedError, UsageError
from edgedec.host.spelling import did_you_mean

if TYPE_CHECKING:
    from edgedec.bundle.bundle import Bundle
    from edgedec.runtime.measure.guesses import GuessResult
    from edgedec.runtime.planning.speculation import SpecConfig

__all__ = ["bench"]


def _random_bundle(shape: str, method: str) -> Bundle:
    """Return a bundle with random weights of a named shape, kept in the cache folder. Speed depends on the shape alone."""
    from edgedec.bundle.bundle import Bundle
    from edgedec.bundle.manifest import MANIFEST, VERSION
    from edgedec.host.paths import cache_folder, clear_cached
    from edgedec.quantize.synthetic.random_bundle import write_random_bundle

    folder = cache_folder() / "bench"
    folder.mkdir(exist_ok=True)
    path = folder / f"{shape}-{method}-v{VERSION}.edgedec"
    if path.exists():
        try:
            return Bundle.open(path)
        except (BundleError, UnsupportedError):
            note(f"{path}: damaged; making it again")
            clear_cached(path, MANIFEST)
    with progress(f"writing random weights of {shape}"):
        write_random_bundle(path, shape, method)
    return Bundle.open(path)


def bench(
    ctx: typer.Context,
    model_word: ModelWord = None,
    shape: Annotated[
        str | None, option("--shape", metavar="NAME", help="Use random weights of this shape, e.g. bitnet-0.73b.")
    ] = None,
    model: Annotated[
        str | None, option("-m", "--model", metavar="BUNDLE", help="Folder of the bundle, or 'demo'.")
    ] = None,
    method: Annotated[
        str | None, option("--method", metavar="NAME", help="With --shape: ternary (default) or int8.")
    ] = None,
    device: Device = "cpu",
    threads: Threads = 0,
    kv_policy: KvPolicy = None,
    spec_type: SpecType = "none",
    model_draft: ModelDraft = None,
    draft_max: DraftMax = 8,
    spec_tree: SpecTree = "",
    tree_nodes: TreeNodes = 0,
    verifier: VerifierName = "match",
    temp: Temp = 0.8,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Measure speed on this machine.

    The results are tokens per second, and the time of passes of 1 to 32 rows. With --spec-type, texts are written with
    guesses, too.
    """
    model = one_model(ctx, model_word, model)
    if (shape is None) == (model is None):
        raise UsageError("use either --shape NAME or -m BUNDLE")
    if model is not None and method is not None:
        raise UsageError("--method is for the random weights of --shape; a bundle has its own: leave it out with -m")
    spec = None
    if spec_type != "none":
        if model is None:
            raise UsageError("--spec-type needs a model that writes text: give it with -m; --shape has random weights")
        spec = PlanOptions(
            model=model,
            spec_type=spec_type,
            model_draft=model_draft,
            draft_max=draft_max,
            spec_tree=spec_tree,
            tree_nodes=tree_nodes,
            verifier=verifier,
        ).spec()
    elif verifier != "match":
        raise UsageError(f"--verifier {verifier} is for guesses: give a drafter with --spec-type")
    from edgedec.bundle.bundle import Bundle
    from edgedec.calibrated_bundle import AUTO, FULL, policy_name, with_policy
    from edgedec.quantize.synthetic.random_bundle import SHAPES
    from edgedec.runtime.base.cores import physical_cores
    from edgedec.runtime.measure.guesses import bench_guesses
    from edgedec.runtime.measure.speed import bench as measure

    if shape is not None and shape not in SHAPES:
        raise UsageError(f"there is no shape {shape!r}; known: {', '.join(SHAPES)}{did_you_mean(shape, SHAPES)}")
    if shape is not None:
        bundle = _random_bundle(shape, method or "ternary")
    else:
        assert model is not None
        bundle = Bundle.open(resolve_model(model))
    # No budget asks for less than the full cache.
    bundle = with_policy(bundle, FULL if kv_policy == AUTO else kv_policy)
    threads = threads or physical_cores()
    with progress("measuring") as report:
        result = measure(bundle, device=device, threads=threads, progress=report)
    data: dict[str, Any] = {
        "predicted_per_second": round(result.predicted_per_second, 3),
        "prompt_per_second": round(result.prompt_per_second, 3),
        "pass_ms": {str(rows): round(ms, 4) for rows, ms in result.pass_ms.items()},
        "threads": threads,
        "device": device,
        "kernel": result.kernel,
        "shape": shape,
        "model": model,
        "method": bundle.quantization.get("method"),
        "kv_policy": policy_name(bundle),
        "rounds": result.rounds,
        "guesses": None,
    }
    if spec is not None:
        assert model is not None
        with progress("writing with guesses") as report:
            data["guesses"] = _guesses_data(
                spec,
                bench_guesses(
                    resolve_model(model),
                    spec,
                    temperature=temp,
                    device=device,
                    threads=threads,
                    kv_policy=kv_policy,
                    progress=report,
                ),
                temp,
            )
    if json:
        print_json(data)
        return
    kernel = f", kernel {result.kernel}" if result.kernel else ""
    policy = "" if data["kv_policy"] == FULL else f", policy {data['kv_policy']}"
    print(
        f"{shape or model}, {data['method']}{policy}, measured on this machine: device {device}{kernel}, {threads} threads"
    )
    rows = [(f"pass of {rows}", f"{ms:.2f} ms") for rows, ms in result.pass_ms.items()]
    if (guesses := data["guesses"]) is not None:
        rows += [
            ("with guesses", f"{guesses['predicted_per_second']:.1f} tokens/s"),
            ("tokens per round", f"{guesses['tokens_per_round']:.2f}"),
            ("text", guesses["lossless"]),
        ]
    print_table(
        [
            ("decoding", f"{result.predicted_per_second:.1f} tokens/s"),
            ("prefill", f"{result.prompt_per_second:.1f} tokens/s"),
            *rows,
        ],
        right=(1,),
    )


def _guesses_data(spec: SpecConfig, result: GuessResult, temperature: float) -> dict[str, Any]:
    """Return the figures of texts that were written with guesses, as --json prints them."""
    return {
        "drafter": spec.drafter_name,
        "spec_tree": result.tree,
        "verifier": spec.verifier,
        "temperature": temperature,
        "lossless": result.lossless,
        "tokens_per_round": round(result.tokens_per_round, 4),
        "predicted_per_second": round(result.predicted_per_second, 3),
        "draft_n": result.drafted,
        "draft_n_accepted": result.accepted,
    }
