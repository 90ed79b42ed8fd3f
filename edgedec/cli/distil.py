"""``edgedec distil``: train a ternary checkpoint from a float one."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.cli.options import Json, Threads, Verbose, option
from edgedec.cli.run_options import command_line
from edgedec.errors import ToolError, UsageError
from edgedec.host.install_hint import install_extra
from edgedec.progress import silent

if TYPE_CHECKING:
    from edgedec.quantize.distil.distil import DistilOptions

__all__ = ["distil"]


def _require_training() -> None:
    for package in ("torch", "matplotlib"):  # matplotlib too, so that the plot does not fail after hours of training
        if find_spec(package) is None:
            raise ToolError(f"edgedec distil needs {package}; run: {install_extra('train')}")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options that the student depends on."""

    method: Annotated[
        str, option("--method", metavar="NAME", help="Method: ternary, or float (for a small draft).")
    ] = "ternary"
    init: Annotated[
        str,
        option(
            "--init", metavar="NAME", help="Initial weights: absmean or planes (from the teacher's weights), or random."
        ),
    ] = "absmean"
    group_size: Annotated[
        int, option("--group-size", metavar="N", help="Weights per scale: 32, 64 or 128; 0: one scale per tensor.")
    ] = 0
    sub_norms: Annotated[bool, option("--sub-norms", help="Add norms before o and down, as in BitNet.")] = False
    layers: Annotated[
        int, option("--layers", metavar="N", help="Layers of the student; 0: as many as the teacher.")
    ] = 0
    hidden_size: Annotated[
        int,
        option("--hidden-size", metavar="N", help="Hidden size of the student, with --init random; 0: as the teacher."),
    ] = 0
    intermediate_size: Annotated[
        int,
        option(
            "--intermediate-size",
            metavar="N",
            help="Intermediate size of the student, with --init random; 0: as the teacher.",
        ),
    ] = 0
    heads: Annotated[
        int, option("--heads", metavar="N", help="Heads of the student, with --init random; 0: as the teacher.")
    ] = 0
    steps: Annotated[int, option("--steps", metavar="N", help="Number of optimizer steps.")] = 1000
    batch_tokens: Annotated[
        int, option("--batch-tokens", metavar="N", help="Tokens of a step, on all devices together, in whole rows.")
    ] = 4096
    length: Annotated[int, option("--length", metavar="N", help="Tokens of a row, at most the teacher's context.")] = (
        256
    )
    accumulate: Annotated[
        int,
        option(
            "--accumulate",
            metavar="N",
            help="Parts in which a device computes its share of a step; more parts need less memory.",
        ),
    ] = 1
    learning_rate: Annotated[float, option("--learning-rate", metavar="N", help="Peak learning rate.")] = 1e-3
    weight_decay: Annotated[
        float, option("--weight-decay", metavar="N", help="Weight decay in the first half of the steps; 0 afterwards.")
    ] = 0.1
    warmup_steps: Annotated[
        int,
        option("--warmup-steps", metavar="N", help="Steps until the peak learning rate, at most a fifth of all steps."),
    ] = 50
    text_weight: Annotated[float, option("--text-weight", metavar="N", help="Weight of the loss on the text.")] = 0.2
    logits_weight: Annotated[
        float, option("--logits-weight", metavar="N", help="Weight of the loss on the teacher's distribution.")
    ] = 0.8
    hidden_weight: Annotated[
        float, option("--hidden-weight", metavar="N", help="Weight of the loss on its hidden states.")
    ] = 0.2
    text_tokens: Annotated[
        int,
        option(
            "--text-tokens",
            metavar="N",
            help="Tokens of text that the teacher writes; 0: those of the training, at most 1e6.",
        ),
    ] = 0
    temp: Annotated[float, option("--temp", metavar="N", help="Temperature of the text that the teacher writes.")] = 1.0
    seed: Annotated[
        int, option("--seed", metavar="N", min=0, max=1 << 30, help="Seed of text, batches and weights.")
    ] = 0

    def options(self) -> DistilOptions:
        """Return the options of a run.

        Raises:
            UsageError: a value is out of range; the message names its option.
        """
        from edgedec.quantize.distil.distil import DistilOptions
        from edgedec.quantize.distil.objective import ObjectiveOptions
        from edgedec.quantize.distil.schedule import Schedule
        from edgedec.quantize.distil.student import StudentOptions

        return DistilOptions(
            schedule=Schedule(
                steps=self.steps,
                learning_rate=self.learning_rate,
                weight_decay=self.weight_decay,
                warmup_steps=self.warmup_steps,
            ),
            student=StudentOptions(
                method=self.method,
                init=self.init,
                group_size=self.group_size,
                sub_norms=self.sub_norms,
                layers=self.layers,
                hidden_size=self.hidden_size,
                intermediate_size=self.intermediate_size,
                heads=self.heads,
            ),
            objective=ObjectiveOptions(text=self.text_weight, logits=self.logits_weight, hidden=self.hidden_weight),
            batch_tokens=self.batch_tokens,
            length=self.length,
            accumulate=self.accumulate,
            text_tokens=self.text_tokens,
            temperature=self.temp,
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class RunningOptions:
    """The options that the run depends on, and the student's last bits at most."""

    device: Annotated[
        str, option("--device", metavar="NAME", help="Device: auto (CUDA if there is one), cpu or cuda.")
    ] = "auto"
    precision: Annotated[
        str,
        option(
            "--precision", metavar="NAME", help="Precision of products: auto (the faster one), float32 or bfloat16."
        ),
    ] = "auto"
    compile: Annotated[bool, option("--compile", help="Use torch.compile, which starts slowly and is faster then.")] = (
        False
    )
    every: Annotated[
        int,
        option(
            "--every",
            metavar="N",
            min=1,
            help="Steps between validations with a checkpoint; the result does not depend on it.",
        ),
    ] = 100
    restart: Annotated[
        bool, option("--restart", help="Discard the checkpoint of an earlier run in the same place.")
    ] = False
    threads: Threads = 0


@command_line
def distil(
    *,
    teacher: Annotated[Path, typer.Argument(metavar="TEACHER", help="Hugging Face folder, or a llama2.c .bin file.")],
    output: Annotated[Path, option("-o", "--output", metavar="CHECKPOINT", help="Folder of the checkpoint to write.")],
    text: Annotated[
        list[Path] | None,
        option(
            "--text",
            metavar="FILE",
            help="UTF-8 text, or JSONL with the key text; can be repeated. Default: the teacher writes the text.",
        ),
    ] = None,
    training: TrainingOptions,
    tokenizer: Annotated[
        Path | None, option("--tokenizer", metavar="FILE", help="Tokenizer file, if it is not beside the weights.")
    ] = None,
    running: RunningOptions,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Train a one-plane ternary student of a float model.

    `edgedec quantize --method ternary` converts the student without loss. If a run is stopped, the same command continues
    it. For several devices, use torchrun --nproc-per-node N -m edgedec distil ...
    """
    _require_training()
    from edgedec.quantize.distil.devices import find_place
    from edgedec.quantize.distil.distil import distil as run
    from edgedec.quantize.readers import open_checkpoint

    options = training.options()
    if text and options.text_tokens:
        raise UsageError("--text-tokens is for text that the teacher writes; leave it out, or leave out --text")
    opened = open_checkpoint(teacher, tokenizer)
    place = find_place(running.device, running.precision)
    try:
        with progress("distilling") if place.first else nullcontext(silent) as report:
            result = run(
                opened,
                output,
                options,
                text=text or (),
                place=place,
                threads=running.threads,
                every=running.every,
                compiled=running.compile,
                restart=running.restart,
                tell=lambda checked: note(checked.line(training.steps)),
                progress=report,
            )
    except KeyboardInterrupt:
        if place.first:
            note(
                f"stopped; the same command{' without --restart' * running.restart} continues from the last checkpoint"
            )
        raise
    if result is None:
        return
    data: dict[str, Any] = {
        "output": str(output),
        "parameters": result.parameters,
        "ternary_parameters": result.ternary_parameters,
        "tokens": result.tokens,
        "perplexity_teacher": result.teacher_perplexity,
        "perplexity_student": result.student_perplexity,
        "seconds": round(result.seconds, 1),
        "loss_plot": str(result.run_folder / "loss.png"),
    }
    if json:
        print_json(data)
        return
    ratio = result.student_perplexity / result.teacher_perplexity
    print_table(
        [
            ("checkpoint", data["output"]),
            ("parameters", f"{result.parameters:,}, of which {result.ternary_parameters:,} are ternary"),
            ("tokens trained on", f"{result.tokens:,}"),
            ("perplexity, teacher", f"{result.teacher_perplexity:.3f} (held-out text)"),
            ("perplexity, student", f"{result.student_perplexity:.3f} ({100 * (ratio - 1):+.1f} %)"),
            ("seconds", f"{result.seconds:.0f}"),
            ("loss plot", data["loss_plot"]),
        ]
    )
