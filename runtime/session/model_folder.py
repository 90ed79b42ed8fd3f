"""Open the folder that a user names: a bundle, or a board bundle, which holds a model and its accelerator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.embedded import bundle_folder
from edgedec.errors import UsageError
from edgedec.runtime.targets import is_accelerator

if TYPE_CHECKING:
    from edgedec.runtime.accelerator.options import AcceleratorOptions

__all__ = ["open_model"]


def open_model(
    path: str | Path, device: str, accelerator: AcceleratorOptions | None, *, verify: bool = False
) -> tuple[Bundle, AcceleratorOptions | None]:
    """Return the model at ``path``, or the embedded model of that name, and the options of its accelerator.

    The options are those of the argument, with the board bundle if ``path`` is one. With ``verify``,
    weights are read even if they were checked before and have not changed since.

    Raises:
        UsageError: the options name a board or a configuration that is not the board bundle's.
    """
    path = bundle_folder(path)
    if not is_accelerator(device):
        return Bundle.open(path, verify=verify), accelerator
    from edgedec.runtime.accelerator.board_bundle import open_board_bundle
    from edgedec.runtime.accelerator.board_manifest import MANIFEST
    from edgedec.runtime.accelerator.options import AcceleratorOptions

    if not (path / MANIFEST).is_file():
        return Bundle.open(path, verify=verify), accelerator
    board_bundle, options = open_board_bundle(path), accelerator or AcceleratorOptions()
    if options.board not in ("", board_bundle.board) or options.size != "small" or options.overrides:
        raise UsageError(
            f"{path} is the accelerator that was built for {board_bundle.board}; leave out --board and --configuration, or "
            "give the model's own bundle"
        )
    return board_bundle.model, replace(options, board_bundle=board_bundle)
