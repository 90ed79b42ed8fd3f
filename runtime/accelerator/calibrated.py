"""A cache of calibrations on disk, because a calibration takes longer than all other preparations of a simulation."""

from __future__ import annotations

import hashlib
import logging
from functools import cache
from pathlib import Path

from edgedec import reference
from edgedec.bundle.atomic import new_file
from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, EdgedecError
from edgedec.host.paths import cache_folder
from edgedec.progress import Progress, silent
from edgedec.reference.integer_profile.calibrate import calibrate
from edgedec.reference.integer_profile.calibration import Calibration

__all__ = ["calibrated", "profile_code"]

_LOG = logging.getLogger(__name__)


def calibrated(bundle: Bundle, *, progress: Progress = silent) -> Calibration:
    """Return ``calibrate(bundle)``, from the cache folder if it was computed for the same bundle by the same code.

    See ``calibrate`` for the errors.
    """
    file = cache_folder() / "calibrations" / f"{bundle.sha256[:16]}-{profile_code()}.json"
    try:
        return Calibration.from_json(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, BundleError):  # the file does not exist, or is damaged
        calibration = calibrate(bundle, progress=progress)
    try:
        with new_file(file) as partial:
            partial.write_text(calibration.to_json(), "utf-8")
    except EdgedecError as error:
        _LOG.warning("the calibration is not kept: %s", error)
    return calibration


@cache
def profile_code() -> str:
    """Return a hash of the source code on which a calibration depends."""
    digest = hashlib.sha256()
    core = Path(reference.__path__[0])
    graph = [core.parent / "graph" / name for name in ("passes.py", "ops.py", "graph.py")]
    for path in sorted([*core.rglob("*.py"), *graph]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for path in sorted((core.parent / "families").glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
