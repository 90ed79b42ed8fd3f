"""Values of the model that an accelerator's passes return beside logits: which devices have them, and their memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.device import device_taps
from edgedec.errors import UnsupportedError
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.model_graph import tap_bytes
from edgedec.runtime.protocols import F32, I32, Limits
from edgedec.runtime.run_sizes import run_rows

__all__ = ["check_open", "check_taps", "host_bytes", "tapped_rows"]

_INSTEAD = "leave out --embeddings, or the drafter that reads them, or use --device "


def check_taps(device: str, options: AcceleratorOptions, taps: Sequence[str]) -> None:
    """Check that a device can return values beside logits, if there are ``taps``.

    Raises:
        UnsupportedError: it cannot; the message has the names.
    """
    if not taps:
        return
    names, kind = ", ".join(taps), device.partition(":")[0]
    if not device_taps(kind):
        raise UnsupportedError(
            f"--device {kind} returns logits only, not {names}: its program is that of a board bundle, which writes nothing "
            f"else; {_INSTEAD}sim, interpreter or cpu"
        )
    if options.board_bundle is not None:
        raise UnsupportedError(
            f"{options.board_bundle.path}: the program of a board bundle returns logits only, not {names}; give the model's "
            f"own bundle with --device interpreter, {_INSTEAD}cpu"
        )


def check_open(taps: Sequence[str], opened: Sequence[str]) -> None:
    """Check that a target was opened for the values of a pass.

    Raises:
        UnsupportedError: it was not.
    """
    missing = [name for name in taps if name not in opened]
    if missing:
        raise UnsupportedError(f"the program was compiled without the tap {missing[0]!r}; open the target with taps=")


def host_bytes(bundle: Bundle, limits: Limits, taps: Sequence[str]) -> int:
    """Return the bytes of the values of a run in the host's memory: float32, and products in float64 before.

    Raises:
        UnsupportedError: the model has no such value.
    """
    return 3 * run_rows(limits) * tap_bytes(bundle, taps, every_row=False)


def tapped_rows(driver: Driver, names: Sequence[str], first: int, rows: int, wanted: I32) -> Mapping[str, F32]:
    """Return values of a sequence's rows in the last pass, float32 [n, width] of each name.

    Args:
        driver: the driver that ran the pass.
        names: names of the values.
        first: first slot of the sequence.
        rows: number of its rows.
        wanted: slots of the rows whose logits are requested; some values have these rows only.
    """
    every = np.arange(first, first + rows, dtype=np.int32)
    return {name: driver.tapped(name, wanted if driver.host.tap(name).selected else every).real for name in names}
