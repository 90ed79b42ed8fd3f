"""``edgedec calibrate-kv``: find a policy of keys and values for a bundle, and write a bundle that has it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli._origins import flags_used
from edgedec.cli.console import print_json, print_table, progress
from edgedec.cli.options import Json, Model, Threads, Verbose, option, resolve_model
from edgedec.errors import ToolError, UsageError
from edgedec.host.install_hint import install_extra
from edgedec.host.spelling import must_be_one_of

if TYPE_CHECKING:
    from edgedec.bundle.bundle import Bundle
    from edgedec.progress import Progress
    from edgedec.quantize.kv_calibration.double_sparsity import SelectionOptions, SelectionReport
    from edgedec.quantize.kv_calibration.duo import DuoReport

__all__ = ["calibrate_kv"]

_DUO = ("window", "share", "threshold", "steps")
_SELECTION = ("keys", "key_share", "recent", "channels", "label_bits", "texts")
KINDS = {  # options of each kind
    "duo": _DUO,
    "double-sparsity": _SELECTION,
    "nosa": (*_SELECTION, "kept"),
    "shadowkv": (*_SELECTION, "rank"),
}


def calibrate_kv(
    ctx: typer.Context,
    output: Annotated[Path, option("-o", "--output", metavar="NAME", help="Folder of the calibrated bundle to write.")],
    model: Model,
    kind: Annotated[
        str,
        option(
            "--kind",
            metavar="NAME",
            help="Kind of policy: duo (some heads see the whole context), double-sparsity, nosa or shadowkv (queries choose "
            "keys; the last two keep values in a file).",
        ),
    ] = "duo",
    sinks: Annotated[
        int | None,
        option("--sinks", metavar="N", help="First positions that are always seen; default: 16 (duo) or 4."),
    ] = None,
    window: Annotated[
        int | None,
        option(
            "--window",
            metavar="N",
            help="duo: last positions that streaming heads see; default: a 64th of the context, at least 32.",
        ),
    ] = None,
    share: Annotated[
        float,
        option(
            "--share",
            metavar="X",
            help="duo: share of the heads that see the whole context, rounded up to whole heads.",
        ),
    ] = 0.5,
    threshold: Annotated[
        float | None,
        option(
            "--threshold",
            metavar="X",
            help="duo: least gate of a head that sees the whole context, instead of --share.",
        ),
    ] = None,
    steps: Annotated[
        int, option("--steps", metavar="N", help="duo: number of optimizer steps, with a text each.")
    ] = 120,
    keys: Annotated[
        int | None,
        option(
            "--keys",
            metavar="N",
            help="not duo: keys that a query attends to; default: a 16th of the context, at least 32.",
        ),
    ] = None,
    key_share: Annotated[
        float,
        option(
            "--key-share",
            metavar="X",
            help="not duo: share of the keys seen to attend to, if that is more.",
        ),
    ] = 0.0,
    recent: Annotated[
        int | None,
        option(
            "--recent",
            metavar="N",
            help="not duo: last keys that are always among them; default: an eighth of the keys.",
        ),
    ] = None,
    channels: Annotated[
        int | None,
        option(
            "--channels",
            metavar="N",
            help="not duo: channels of a key's label; default: an eighth of the head's.",
        ),
    ] = None,
    label_bits: Annotated[
        int, option("--label-bits", metavar="N", help="not duo: bits of a channel in a label, 8 or 4.")
    ] = 4,
    kept: Annotated[
        int | None,
        option("--kept", metavar="N", help="nosa: keys that are chosen by importance; default: half of those chosen."),
    ] = None,
    rank: Annotated[
        int | None,
        option(
            "--rank",
            metavar="N",
            help="shadowkv: numbers of a stored key, even; default: a third of the head's dimensions.",
        ),
    ] = None,
    texts: Annotated[int, option("--texts", metavar="N", help="not duo: number of texts to measure on.")] = 8,
    seed: Annotated[int, option("--seed", metavar="N", min=0, max=1 << 12, help="Seed of the texts.")] = 0,
    threads: Threads = 0,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Find a policy of keys and values for a model, and write a bundle that has it.

    The weights stay as they are. The calibrated bundle keeps or reads fewer keys and values, and writes other texts.
    """
    if kind not in KINDS:
        raise UsageError(must_be_one_of("--kind", kind, KINDS))
    for name in dict.fromkeys(name for names in KINDS.values() for name in names):
        if name not in KINDS[kind] and flags_used(ctx, name):
            others = " or ".join(other for other, names in KINDS.items() if name in names)
            raise UsageError(f"--{name.replace('_', '-')} is for --kind {others}, not {kind}; leave it out")
    if threshold is not None and flags_used(ctx, "share"):
        raise UsageError("--share and --threshold both choose the heads; leave one of them out")
    from edgedec.bundle.bundle import Bundle

    bundle = Bundle.open(resolve_model(model))
    if find_spec("torch") is None:
        raise ToolError(f"edgedec calibrate-kv needs torch; run: {install_extra('train')}")
    if kind == "duo":
        from edgedec.quantize.kv_calibration.duo import DuoOptions, calibrate_duo

        gates = DuoOptions(sinks=sinks, window=window, share=share, threshold=threshold, seed=seed, steps=steps)
        with progress("calibrating") as report:
            result = calibrate_duo(bundle, output, gates, threads=threads, progress=report)
        data = _described(result, output)
        print_json(data) if json else _print(result, data)
        return
    from edgedec.quantize.kv_calibration.double_sparsity import SelectionOptions

    selection = SelectionOptions(
        keys=keys,
        key_share=key_share,
        sinks=sinks,
        recent=recent,
        channels=channels,
        label_bits=label_bits,
        seed=seed,
        texts=texts,
    )
    with progress("calibrating") as report:
        chosen = _selection(kind, bundle, output, selection, kept=kept, rank=rank, threads=threads, report=report)
    if json:
        print_json(chosen.as_json(output))
    else:
        _print_selection(chosen, output)


def _selection(
    kind: str,
    bundle: Bundle,
    output: Path,
    options: SelectionOptions,
    *,
    kept: int | None,
    rank: int | None,
    threads: int,
    report: Progress,
) -> SelectionReport:
    """Calibrate and write a policy whose queries choose keys."""
    if kind == "nosa":
        from edgedec.quantize.kv_calibration.nosa import calibrate_nosa

        return calibrate_nosa(bundle, output, options, kept=kept, threads=threads, progress=report)
    if kind == "shadowkv":
        from edgedec.quantize.kv_calibration.shadowkv import calibrate_shadowkv

        return calibrate_shadowkv(bundle, output, options, rank=rank, threads=threads, progress=report)
    from edgedec.quantize.kv_calibration.double_sparsity import calibrate_double_sparsity

    return calibrate_double_sparsity(bundle, output, options, threads=threads, progress=report)


def _print_selection(result: SelectionReport, output: Path) -> None:
    print_table([("bundle", str(output)), *result.policy.lines(), ("seconds", f"{result.seconds:.0f}")])
    print()
    rows = [
        (
            state,
            "; ".join(" ".join(map(str, own)) for own in result.policy.selections[state].channels),
            *(f"{100 * shares[state]:.0f} %" for shares in result.shares.values()),
        )
        for state in result.policy.selections
    ]
    print_table([("state", "channels of its heads", *result.shares), *rows])


def _described(result: DuoReport, output: Path) -> dict[str, Any]:
    policy = result.policy
    return {
        "output": str(output),
        **policy.to_json(),
        "gates": {state: [round(float(gate), 4) for gate in own] for state, own in result.gates.items()},
        "heads": sum(map(len, result.gates.values())),
        "streaming_heads": sum(map(len, policy.streaming.values())),
        "distance": round(result.distance, 6),
        "text_tokens": result.length,
        "seconds": round(result.seconds, 1),
    }


def _print(result: DuoReport, data: dict[str, Any]) -> None:
    print_table(
        [
            ("bundle", data["output"]),
            ("streaming heads", f"{data['streaming_heads']} of {data['heads']}"),
            ("they see", f"{data['sinks']} sinks, and a window of {data['window']}"),
            ("distance of hidden states", f"{result.distance:.4f} (relative, on a text that was not trained on)"),
            ("seconds", f"{result.seconds:.0f}"),
        ]
    )
    print()
    rows = [
        (state, " ".join(f"{gate:.2f}" for gate in own), ", ".join(map(str, result.policy.streaming[state])) or "none")
        for state, own in result.gates.items()
    ]
    print_table([("state", "gates of its heads", "streaming"), *rows])
