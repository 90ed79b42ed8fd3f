"""Read the command line of a training of embedded models, prepare its folder, and report its errors."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

import torch

from edgedec.errors import EdgedecError
from edgedec.quantize.demo_pair.stage_run import BatchRecipe, StageRun
from edgedec.quantize.demo_pair.text_folder import make_text
from edgedec.quantize.distil.devices import find_place

__all__ = ["new_parser", "run_training", "with_options"]

R = TypeVar("R", bound=BatchRecipe)
_AT_LEAST_ONE = ("steps", "layers", "shard_steps", "writers")


def new_parser(
    description: str | None, output: Path, defaults: BatchRecipe, *, learning_rate: float
) -> argparse.ArgumentParser:
    """Return a parser of the options that every training has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=output)
    parser.add_argument(
        "--steps", type=int, default=defaults.steps, help="steps of each final model, including the trunk's"
    )
    parser.add_argument("--batch-tokens", type=int, default=defaults.batch_tokens)
    parser.add_argument(
        "--shard-documents", type=int, default=defaults.shard_documents, help="documents per part of the text"
    )
    parser.add_argument(
        "--shard-steps",
        type=int,
        default=defaults.shard_steps,
        help="steps that take their rows from one part of the text; a document has some 230 tokens",
    )
    parser.add_argument(
        "--writers", type=int, default=1, help="processes that write text in advance; a GPU is faster than one of them"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="a run may continue with another number; its sums then round differently"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--precision", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--stages", type=Path, help="folder of packaged stages; default: OUTPUT/stages")
    parser.add_argument("--learning-rate", type=float, default=learning_rate)
    parser.add_argument("--package-every", type=int, default=500, help="steps between packages of an unfinished stage")
    parser.add_argument(
        "--compile", action="store_true", help="use torch.compile, which takes a minute and makes the steps faster"
    )
    return parser


def with_options(defaults: R, args: argparse.Namespace) -> R:
    """Return the recipe with the values of the options that have the names of its fields."""
    given = vars(args)
    return replace(defaults, **{field.name: given[field.name] for field in fields(defaults) if field.name in given})


def run_training(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    recipe: Callable[[], BatchRecipe],
    body: Callable[[StageRun], Sequence[str]],
    *,
    tokenizer: Path | None,
) -> int:
    """Run ``body``, print the folders of the models whose names it returns as JSON, and return the exit code.

    Args:
        recipe: function of the recipe, whose errors are reported like those of the training.
        tokenizer: folder with the ``tokenizer.json`` of weights that the training begins with; None: there are none.
    """
    level = logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    for option in _AT_LEAST_ONE:
        if (value := getattr(args, option, 1)) < 1:
            parser.error(f"--{option.replace('_', '-')} must be at least 1, not {value}")
    torch.set_num_threads(args.threads)
    stages = args.stages or args.output / "stages"
    try:
        settings, place = recipe(), find_place(args.device, args.precision)
        if place.first:
            make_text(args.output / "text", stages, tokenizer)
        place.wait()
        run = StageRun(
            settings,
            args.output,
            stages,
            place,
            every=args.every,
            package_every=args.package_every,
            compiled=args.compile,
            writers=args.writers,
        )
        names = body(run)
        run.shards.close()
    except EdgedecError as error:
        sys.stderr.write(f"edgedec: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("stopped; the same command goes on from the last checkpoint\n")
        return 130
    if place.first:
        sys.stdout.write(json.dumps({name: str(args.output / "models" / name) for name in names}) + "\n")
    return 0
