"""A bundle's calibration, kept from run to run: to make it takes longer than all else that a simulation begins with."""

from __future__ import annotations

import hashlib
import logging
from functools import cache
from pathlib import Path

from edgedec import reference
from edgedec.atomic import new_file
from edgedec.bundle import Bundle
from edgedec.errors import BundleError, EdgedecError
from edgedec.paths import cache_folder
from edgedec.progress import Progress, silent
from edgedec.reference.integer_profile.calibrate import calibrate
from edgedec.reference.integer_profile.calibration import Calibration

__all__ = ["calibrated"]

_LOG = logging.getLogger(__name__)


def calibrated(bundle: Bundle, *, progress: Progress = silent) -> Calibration:
    """``calibrate`` without windows, found again in the cache folder if bundle and code are the same.

    Raises:
        as ``calibrate``.
    """
    file = cache_folder() / "calibrations" / f"{bundle.sha256[:16]}-{_code()}.json"
    try:
        return Calibration.from_json(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, BundleError):  # not made yet, or damaged
        made = calibrate(bundle, progress=progress)
    try:
        with new_file(file) as partial:
            partial.write_text(made.to_json(), "utf-8")
    except EdgedecError as error:
        _LOG.warning("the calibration is not kept: %s", error)
    return made


@cache
def _code() -> str:
    """Of everything that a calibration follows from, besides the bundle."""
    digest = hashlib.sha256()
    core = Path(reference.__path__[0])
    for path in sorted([*core.rglob("*.py"), *(core.parent / name for name in ("passes.py", "ops.py", "graph.py"))]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for path in sorted((core.parent / "families").glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
