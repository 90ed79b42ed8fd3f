"""``edgedec borrow``: write a draft model's bundle without the tensors that its target has, too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli.console import counted, print_json, print_table
from edgedec.cli.options import Json, Verbose, option, resolve_model

__all__ = ["borrow"]


def borrow(
    draft: Annotated[str, typer.Argument(metavar="BUNDLE", help="Folder of the draft model's bundle.")],
    target: Annotated[str, option("--target", metavar="BUNDLE", help="Folder of the target's bundle, or 'demo'.")],
    output: Annotated[Path, option("-o", "--output", metavar="NAME", help="Folder of the smaller bundle to write.")],
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Write a draft model's bundle without the tensors that its target has, too.

    The new bundle is a draft model of this target only, and the tensors are in memory once. No text depends on it.
    """
    from edgedec.borrowing_bundle import write_borrowing
    from edgedec.bundle.bundle import Bundle
    from edgedec.memory.byte_sizes import format_bytes

    whole, lender = Bundle.open(resolve_model(draft)), Bundle.open(resolve_model(target))
    stored = whole.weight_bytes
    common = write_borrowing(whole, lender, output)
    written = Bundle.open(output, borrows=True)
    if json:
        print_json(
            {
                "output": str(output),
                "target": str(lender.path),
                "borrows": {name: one.to_json() for name, one in common.items()},
                "weight_bytes": written.weight_bytes,
                "whole_weight_bytes": stored,
            }
        )
        return
    rows = [(name, one.tensor, format_bytes(lender.tensors[one.tensor].nbytes)) for name, one in common.items()]
    print_table([("borrowed", "tensor of the target", "size"), *rows], right=(2,))
    print()
    print_table(
        [
            ("bundle", str(output)),
            ("weights", f"{format_bytes(written.weight_bytes)}, {format_bytes(stored)} before"),
            ("target", f"{lender.path}, which lends {counted(len(common), 'tensor')}"),
        ]
    )
