"""``edgedec batch``: answer a file of requests, many at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli.console import counted, note, print_json, progress
from edgedec.cli.generate import ctrl_c, note_narrowed
from edgedec.cli.options import Json, Verbose, option
from edgedec.cli.run_options import RunOptions, TextOptions, command_line
from edgedec.errors import EdgedecError

__all__ = ["batch"]

_PARALLEL = 8  # most texts at a time without --parallel


@command_line
def batch(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Requests, one JSON object in each line.")],
    run: RunOptions,
    writing: TextOptions,
    output: Annotated[Path, option("-o", "--output", metavar="FILE", help="File of the answers, one in each line.")],
    parallel: Annotated[
        int,
        option(
            "-np",
            "--parallel",
            min=0,
            max=64,
            metavar="N",
            help="Number of texts to write at a time; 0: up to 8, as many as the budget has room for without less context; "
            "1 on accelerators.",
        ),
    ] = 0,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Answer a file of requests, many at a time.

    Each text is the one that ``generate`` writes. A run that was ended goes on where it was if the same command is given
    again.
    """
    from edgedec.bundle.bundle import Bundle
    from edgedec.cli.options import resolve_model
    from edgedec.runtime.session.batch import BatchDefaults, journal_path, read_batch, run_batch
    from edgedec.runtime.session.model_folder import open_model

    defaults = BatchDefaults(
        n_predict=writing.n_predict, sampling=writing.sampling(), stop=writing.stop, ignore_eos=writing.ignore_eos
    )
    spec = run.spec()
    bundle: Bundle = open_model(resolve_model(run.model), run.device, run.accelerator())[0]
    items = read_batch(file, bundle.sha256, defaults)
    budget = run.find_budget()
    sequences = run.parallel(parallel, spec, budget, most=_PARALLEL)
    with run.open_session(spec, budget, sequences=sequences) as session, ctrl_c() as interrupted:
        note_narrowed(session, spec)
        with progress("answering") as report:
            result = run_batch(session, items, output, interrupted=interrupted, progress=report)
    if json:
        print_json(
            {
                "answered": result.answered,
                "kept": result.kept,
                "failed": result.failed,
                "output": str(journal_path(output) if result.interrupted else output),
            }
        )
    kept = f", {result.kept} were there already" if result.kept else ""
    if result.interrupted:
        note(
            f"{counted(result.answered, 'answer')} in {journal_path(output)}{kept}; the same command goes on from there"
        )
        raise KeyboardInterrupt
    note(f"{counted(result.answered, 'answer')} written to {output}{kept}")
    if result.failed:
        raise EdgedecError(f"{counted(result.failed, 'request')} of {file} failed; each has an error in {output}")
