"""``edgedec quantize``: convert a checkpoint to a bundle, and print a table of the result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec import api
from edgedec.cli._origins import flags_used
from edgedec.cli._rerun import rerun_command
from edgedec.cli.console import note, print_json, print_table, progress, read_text
from edgedec.cli.options import Json, Pool, Verbose, option
from edgedec.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgedec.quantize.readers import Checkpoint
    from edgedec.runtime.measure.perplexity import Score
    from edgedec.runtime.text.tokenizer import Tokenizer
    from edgedec.stopwatch import Stopwatch

__all__ = ["quantize"]

EVAL_TOKENS = 6144  # tokens that are scored by default, of a small model
_LEAST_EVAL_TOKENS = 512  # tokens that are scored by default, of a large model
_EVAL_WORK = EVAL_TOKENS * 8_000_000  # parameters times tokens: some seconds on two cores
_SHORT_WINDOW = 32  # tokens of a sequence that a large model writes
_KV_TOKENS = 2048  # tokens that must be scored before a bundle says what fewer bits of keys and values cost it
NO_TEXT = "none"
# Names of what time is spent on. "writing text" is that of the float model, for calibration and perplexities, with its own
# score; "rest" is imports and checks.
_SPENT = ("reading", "writing text", "quantizing", "writing", "reading back", "scoring", "model card", "rest")


def _text_windows(checkpoint: Checkpoint, tokenizer: Tokenizer, file: Path, flag: str) -> list[NDArray[np.int32]]:
    """Return a text file as windows of ids that begin with BOS."""
    return api.text_windows(checkpoint, tokenizer, read_text(file, flag), f"{flag} {file}")


def _calibration(
    checkpoint: Checkpoint, tokenizer: Tokenizer, source: str | None, tokens: int, seed: int
) -> NDArray[np.int32] | None:
    """Return ids int32 [sequences, length] from a file, or from the float model if none is named; None for ``none``."""
    if source == NO_TEXT:
        return None
    if source is not None:
        text, name = read_text(Path(source), "--calibration"), f"--calibration {source}"
        return api.calibration_ids(checkpoint, tokenizer, text, tokens=tokens, name=name)
    with progress("writing calibration text with the float model") as report:
        return api.calibration_ids(checkpoint, tokenizer, None, tokens=tokens, seed=seed, progress=report)


def _perplexities(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    bundle_path: Path,
    windows: list[NDArray[np.int32]] | None,
    seed: int,
    *,
    tokens: int,
    watch: Stopwatch,
) -> tuple[float | None, float | None, int, dict[str, float]]:
    """Return the perplexities of the float model and of the bundle on the same windows, and the number of scored tokens.

    Without ``windows``, the float model writes the text, with another seed than for the calibration. The perplexities are
    None if the model is too large for that. The last of the result is the table of ``KV_PERPLEXITY``.
    """
    from edgedec.bundle.bundle import Bundle
    from edgedec.families import build_graph
    from edgedec.quantize.calibration import can_sample, float_perplexity, sample_scored
    from edgedec.runtime.kernels.sessions.operator import usable
    from edgedec.runtime.measure.perplexity import perplexity
    from edgedec.runtime.planning.planning import make_plan
    from edgedec.runtime.run_settings import RunSettings
    from edgedec.runtime.targets import open_target, target_module

    limit = tokenizer.size
    if windows is None:
        if not can_sample(checkpoint):
            return None, None, 0, {}
        length = _window_tokens(tokens)
        with watch.phase("writing text"), progress("writing and scoring text with the float model") as report:
            sampled, before = sample_scored(
                checkpoint, tokens=tokens, vocab_limit=limit, seed=seed + 1, length=length, progress=report
            )
        windows = list(sampled)
    else:
        with watch.phase("scoring"), progress("scoring the float model") as report:
            before = float_perplexity(checkpoint, windows, vocab_limit=limit, progress=report)
    with watch.phase("scoring"), progress("scoring the bundle") as report:
        bundle = Bundle.open(bundle_path)
        # Without the kernels, only the reference has recurrent states.
        device = "float_reference" if build_graph(bundle.config).recurrent and usable() is None else "cpu"
        run = make_plan(bundle, RunSettings(ctx_size=max(map(len, windows)), device=device))

        def score(bits: int) -> Score:
            target = open_target(bundle, limits=run.limits, device=device, kv_bits=bits)
            return perplexity(target, run.limits, windows, vocab_limit=limit, progress=report)

        after, usual = score(run.plan.kv_bits), run.plan.kv_bits
        fewer = [bits for bits in target_module(device).kv_choices(device, bundle) if bits < usual]
        if device != "cpu" or after.tokens < _KV_TOKENS:
            fewer = []
        ratios = {str(bits): score(bits).perplexity / after.perplexity for bits in fewer}
    return before, after.perplexity, after.tokens, ratios


def _eval_tokens(checkpoint: Checkpoint) -> int:
    """Return how many tokens to score by default: fewer for a large model, so that scoring takes seconds, not minutes."""
    parameters = sum(math.prod(info.shape) for info in checkpoint.tensors.values())
    return min(EVAL_TOKENS, max(_LEAST_EVAL_TOKENS, _EVAL_WORK // max(1, parameters)))


def _window_tokens(tokens: int) -> int:
    """Return the length of the sequences that the model writes for the perplexities.

    The positions of a sequence are written one after the other, and each reads all weights. So few tokens are written as
    several short sequences instead of a few long ones.
    """
    return api.WINDOW_TOKENS if tokens >= EVAL_TOKENS else min(api.WINDOW_TOKENS, _SHORT_WINDOW)


def quantize(
    ctx: typer.Context,
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="Hugging Face folder, GGUF file or llama2.c .bin file.")
    ],
    output: Annotated[Path, option("-o", "--output", metavar="BUNDLE", help="Folder of the bundle to write.")],
    method: Annotated[str, option("--method", metavar="NAME", help="Method: int8, int4, ternary or float.")] = "int8",
    planes: Annotated[
        int,
        option("--planes", metavar="N", help="Number of ternary planes, 1 to 3; 0: the checkpoint is ternary already."),
    ] = 0,
    group_size: Annotated[
        int, option("--group-size", metavar="N", help="Weights per scale of a plane, with --planes: 32, 64 or 128.")
    ] = 64,
    tied: Annotated[
        bool | None,
        option(
            "--tied/--no-tied",
            help="Tie the scales of 2 or 3 planes 3:1, which are then computed in one pass; default: those of 3 planes.",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, option("--tokenizer", metavar="FILE", help="Tokenizer file, if it is not beside the weights.")
    ] = None,
    calibration: Annotated[
        str | None,
        option(
            "--calibration",
            metavar="FILE",
            help="Text for fitting planes or int4, or 'none'; default: the model writes one.",
        ),
    ] = None,
    calibration_tokens: Annotated[
        int,
        option(
            "--calibration-tokens", metavar="N", min=1, help="Number of tokens of the calibration text that are used."
        ),
    ] = 8192,
    eval_text: Annotated[
        Path | None,
        option(
            "--eval-text", metavar="FILE", help="Text for the perplexities, or 'none'; default: the model writes one."
        ),
    ] = None,
    eval_tokens: Annotated[
        int,
        option(
            "--eval-tokens",
            metavar="N",
            min=0,
            help="Tokens of the perplexities; 0: 6144, or down to 512 for a model of more than 8 million parameters.",
        ),
    ] = 0,
    seed: Annotated[int, option("--seed", metavar="N", min=0, help="Seed of the text that the model writes.")] = 0,
    pool: Pool = "local",
    workers: Annotated[
        int,
        option("--workers", metavar="N", min=0, help="Number of tensors to quantize at the same time; 0: automatic."),
    ] = 0,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Convert a checkpoint to a bundle.

    The bundle is written completely or not at all.
    """
    from edgedec.bundle.atomic import check_folder, check_room
    from edgedec.bundle.manifest import MANIFEST
    from edgedec.memory.meter import MemoryMeter
    from edgedec.quantize.hints import lost_hint
    from edgedec.quantize.model_card import CardFacts, add_card
    from edgedec.quantize.pipeline import QuantizeOptions, least_bytes, uses_calibration
    from edgedec.quantize.provenance import provenance
    from edgedec.quantize.readers import open_checkpoint
    from edgedec.runtime.text.tokenizer import Tokenizer
    from edgedec.stopwatch import Stopwatch

    if not planes and (
        useless := flags_used(ctx, "group_size", *(() if method == "int4" else ("calibration_tokens",)))
    ):
        raise UsageError(
            f"{' and '.join(useless)}: only ternary planes have a use for this; add --method ternary --planes 1, 2 or 3, "
            "or leave it out"
        )
    # These options are checked before anything is read.
    options = QuantizeOptions(method=method, planes=planes, group_size=group_size, tied=tied)
    if calibration is not None and options.fitted_scheme is None:
        raise UsageError(
            "--calibration is for ternary planes and int4: add --method ternary --planes 1, 2 or 3, or --method int4, or "
            "leave it out"
        )
    if pool != "local":
        checkpoint = checkpoint.absolute()  # for processes with another working folder
    watch = Stopwatch("rest")
    with MemoryMeter((checkpoint if checkpoint.is_dir() else checkpoint.parent,)) as meter:
        check_folder(output, MANIFEST)
        with watch.phase("reading"):
            opened = open_checkpoint(checkpoint, tokenizer)
            words = Tokenizer(opened.tokenizer_json, str(opened.source))
        check_room(output, least_bytes(opened, options))
        windows = None
        scores = eval_text is None or str(eval_text) != NO_TEXT
        scored_tokens = eval_tokens or _eval_tokens(opened)
        if (
            eval_text is not None and scores
        ):  # read before anything is written: a wrong path must not cost a quantization
            windows = _text_windows(opened, words, eval_text, "--eval-text")
            windows = windows[: max(1, scored_tokens // len(windows[0]))]
        calibrates = uses_calibration(opened, options)
        with watch.phase("writing text"):
            ids = _calibration(opened, words, calibration, calibration_tokens, seed) if calibrates else None
        with watch.phase("quantizing"), progress("quantizing") as report_progress:
            report = api.quantize_checkpoint(
                opened,
                output,
                method=method,
                planes=planes,
                group_size=group_size,
                tied=tied,
                calibration=ids,
                calibration_tokens=0,
                pool=pool,
                workers=workers,
                progress=report_progress,
            )
        for name, seconds in report.seconds.items():
            if name != "quantizing":
                watch.move("quantizing", name, seconds)
        meter.mark()
        peak_bytes = meter.peak_bytes + sum(report.worker_bytes.values())
    before, after, scored, kv_perplexity = None, None, 0, dict[str, float]()
    if scores:
        before, after, scored, kv_perplexity = _perplexities(
            opened, words, output, windows, seed, tokens=scored_tokens, watch=watch
        )
    hint = lost_hint(options, before=before, after=after, error=report.relative_error)
    if hint is not None:
        note(f"warning: {output}: {hint}")
    with progress("writing the model card") as report_card, watch.phase("model card"):
        facts = CardFacts(
            origin=provenance(opened.source, report=report_card),
            command=rerun_command(ctx, without=("json", "verbose", "pool", "workers"), named={"output": "BUNDLE"}),
            stored_bytes=report.stored_bytes,
            perplexity_before=before,
            perplexity_after=after,
            scored=scored,
            kv_perplexity=kv_perplexity,
            text=f"written by the float model (seed {seed + 1})" if windows is None else Path(str(eval_text)).name,
        )
        add_card(output, facts)
    spent = {name: round(seconds, 3) for name, seconds in watch.seconds().items()}
    result = {
        "output": str(output),
        "method": method,
        "planes": planes,
        "tied": options.ties,
        "group_size": report.group_size,
        "parameters": report.parameters,
        "bits_per_weight": round(report.bits_per_weight, 4),
        "bytes": report.stored_bytes,
        "perplexity_before": before,
        "perplexity_after": after,
        "eval_tokens": scored,
        "calibration_tokens": 0 if ids is None else int(ids.size),
        "relative_error": report.relative_error,
        "seconds": round(sum(spent.values()), 3),
        "spent": {name: spent.get(name, 0.0) for name in _SPENT},
        "notes": [*report.notes, *([] if hint is None else [hint])],
        "peak_bytes": peak_bytes,
    }
    if json:
        print_json(result)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    from edgedec.memory.byte_sizes import format_bytes

    before, after = result["perplexity_before"], result["perplexity_after"]
    how = ", ".join(
        [
            result["method"],
            *([f"planes {result['planes']}{' tied' if result['tied'] else ''}"] if result["planes"] else []),
            *([f"groups of {result['group_size']}"] if result["group_size"] else []),
        ]
    )
    print_table(
        [
            ("bundle", result["output"]),
            ("method", how),
            ("bits per weight", f"{result['bits_per_weight']:.2f}"),
            ("size", f"{format_bytes(result['bytes'])} ({result['bytes']:,} bytes)"),
            ("perplexity before", "-" if before is None else f"{before:.4f}"),
            ("perplexity after", "-" if after is None else f"{after:.4f} ({100 * (after / before - 1):+.2f} %)"),
            ("tokens scored", str(result["eval_tokens"])),
            ("seconds", _seconds(result["spent"])),
            ("peak memory", format_bytes(result["peak_bytes"]) if result["peak_bytes"] else "-"),
        ]
    )


def _seconds(spent: Mapping[str, float]) -> str:
    """Return the seconds as text, with what they were spent on: "3.4 (reading 0.2, ..., scoring 1.1)". The parts add up."""
    parts = {name: round(seconds, 1) for name, seconds in spent.items()}
    details = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items() if seconds)
    return f"{sum(parts.values()):.1f}" + (f" ({details})" if details else "")
