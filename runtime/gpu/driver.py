"""Measure the memory of an adapter's driver when it is used for the first time, and keep it in the cache folder.

A process of its own measures, ``python -m edgedec.runtime.gpu.driver``: one that has freed memory before, or has used the
driver, would not grow.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgedec.bundle.atomic import new_file
from edgedec.errors import EdgedecError
from edgedec.host.paths import cache_folder
from edgedec.memory.meter import MemoryMeter
from edgedec.runtime.gpu.device import Adapter, GpuDevice, chosen_adapter, open_device
from edgedec.runtime.gpu.probe import arithmetic, sample_pipelines

__all__ = ["DriverCost", "known_cost", "opened_device"]

_LOG = logging.getLogger(__name__)
_FILE = "gpu-drivers.json"
_PATIENCE_S = 120  # time limit of the other process; a software driver compiles for some seconds
_STEP = 64 << 10  # figures are rounded up to multiples


@dataclass(frozen=True, kw_only=True)
class DriverCost:
    """Growth of this process's charged memory.

    Members:
        device_bytes: when the adapter is found and opened, with the libraries of its driver.
        pipeline_bytes: for each kernel that is compiled and run.
    """

    device_bytes: int
    pipeline_bytes: int


_UNKNOWN = DriverCost(device_bytes=64 << 20, pipeline_bytes=512 << 10)  # a guess for systems without a meter


def opened_device() -> tuple[GpuDevice, DriverCost]:
    """Open the chosen adapter and return its device with the cost of its driver, measured if it is not known.

    Raises:
        DeviceError: there is no adapter, or it cannot be opened.
    """
    cost = known_cost(chosen_adapter())
    return open_device(), cost


def known_cost(adapter: Adapter) -> DriverCost:
    """Return the cost of an adapter's driver, measured by another process if it is not known yet."""
    kept = _read().get(adapter.key)
    if kept is not None:
        return kept
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__], capture_output=True, text=True, check=True, timeout=_PATIENCE_S
        )
        cost = DriverCost(**json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as error:
        _LOG.info("the memory of the GPU's driver is guessed, because it could not be measured: %s", error)
        return _UNKNOWN
    _keep(adapter.key, cost)
    return cost


def _measured() -> DriverCost:
    """Return the growth of this process, which has done nothing before."""
    meter = MemoryMeter()
    if not meter.available:
        return _UNKNOWN
    device = open_device()
    arithmetic(device)
    opened = meter.charged_bytes()
    count = sample_pipelines(device)
    return DriverCost(
        device_bytes=_rounded(opened), pipeline_bytes=_rounded(-(-(meter.charged_bytes() - opened) // count))
    )


def _rounded(count: int) -> int:
    return max(_STEP, -(-count // _STEP) * _STEP)


def _path() -> Path:
    return cache_folder() / _FILE


def _read() -> dict[str, DriverCost]:
    """Return the kept figures by adapter; a file that cannot be read counts as empty, because it can be made again."""
    try:
        data: Any = json.loads(_path().read_text("utf-8"))
        return {
            str(key): DriverCost(device_bytes=int(cost["device_bytes"]), pipeline_bytes=int(cost["pipeline_bytes"]))
            for key, cost in data.items()
        }
    except (OSError, EdgedecError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _keep(key: str, cost: DriverCost) -> None:
    kept = {name: asdict(item) for name, item in (_read() | {key: cost}).items()}
    try:
        with new_file(_path()) as partial:
            partial.write_text(json.dumps(kept, indent=1), "utf-8")
    except (OSError, EdgedecError) as error:
        _LOG.info("the figures of the GPU's driver are not kept: %s", error)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(_measured())))
