"""The power of a board, read from its own sensor while a model runs. Simulations report no power."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["HWMON", "Energy", "PowerMeter", "PowerSensor", "find_sensor"]

HWMON = Path("/sys/class/hwmon")
INTERVAL_S = (
    0.05  # seconds between samples; the KV260's INA260 updates six or seven times per second, so none is missed
)
_FILES = (
    ("power1_input",),
    ("in1_input", "curr1_input"),
)  # files to read, in order of preference; in1 is the bus voltage
_MOST_WATTS = 1000.0  # upper bound of plausible values, higher than the supply of any such board
_STOP_PATIENCE_S = 2.0  # seconds to wait for the sampling thread, so that a hanging bus does not block the run

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PowerSensor:
    """A hwmon device that measures the power of a whole board, or of its module.

    Source: the kernel's Documentation/hwmon/sysfs-interface: ``powerN_input`` is in microwatts, ``inN_input`` in millivolts,
    ``currN_input`` in milliamperes.

    Members:
        name: name of the device in the kernel. For example, ina260_u14 is the INA260 on the 5 V supply of the KV260's K26
            module, that is of processor, fabric and DRAM together (Linux, zynqmp-sck-kv-g-revB.dtso: an iio-hwmon of that
            name over its three channels).
        files: the file of the power, or those of voltage and current.
    """

    name: str
    files: tuple[Path, ...]

    def read(self) -> float:
        """Return the power in watts.

        Raises:
            OSError: the sensor has disappeared, or its bus does not answer.
            ValueError: the value is not a number, or not plausible.
        """
        values = [int(file.read_text()) for file in self.files]
        watts = values[0] / 1e6 if len(values) == 1 else values[0] * values[1] / 1e6
        if not 0 < watts <= _MOST_WATTS:
            raise ValueError(f"{watts} W")
        return watts


def find_sensor(names: Sequence[str], root: Path = HWMON) -> PowerSensor | None:
    """Return the first of a board's sensors that exists; None if none exists, or several have the same name.

    Args:
        names: names of hwmon devices, ``Board.power_sensors``. Each measures the total power, so they are not added up.
        root: folder of the hwmon devices.
    """
    try:
        devices = sorted(root.iterdir())
    except OSError:
        return None
    for name in names:
        matches = [device for device in devices if _name(device) == name]
        if len(matches) > 1:
            log.warning("%d sensors under %s are called %s; power is not measured", len(matches), root, name)
            return None
        for files in _FILES:
            paths = tuple(device / file for device in matches for file in files)
            if paths and all(path.is_file() for path in paths) and not (len(files) > 1 and _is_labelled(matches[0])):
                return PowerSensor(name=name, files=paths)
    return None


def _is_labelled(device: Path) -> bool:
    """Return whether the channels of a device have labels.

    PMBus drivers label their channels; there the first voltage may be that of the input and the first current that of the
    output, so that their product is not a power.
    """
    return any((device / f"{kind}1_label").exists() for kind in ("in", "curr"))


def _name(device: Path) -> str | None:
    try:
        return (device / "name").read_text().strip()
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, kw_only=True)
class Energy:
    """The energy that was measured between ``start`` and ``stop``.

    Members:
        watts: mean power over ``seconds``.
        joules: integral of the samples by the trapezoidal rule.
        seconds: time between the first and the last sample.
        samples: number of samples, at least 2.
        sensor: name of the sensor.
    """

    watts: float
    joules: float
    seconds: float
    samples: int
    sensor: str

    def as_json(self, tokens: int) -> dict[str, Any]:
        """Return the figures for ``timings``. ``joules_per_token`` is None without tokens."""
        return {
            "watts": round(self.watts, 3),
            "joules": round(self.joules, 4),
            "joules_per_token": round(self.joules / tokens, 6) if tokens > 0 else None,
            "sensor": self.sensor,
            "samples": self.samples,
        }


class PowerMeter:
    """A meter that samples a sensor in a thread between ``start`` and ``stop``. It may be started again.

    If the sensor disappears or returns implausible values, this is logged and ``stop`` returns None; the run continues.

    Args:
        sensor: the sensor.
        interval_s: seconds between two samples. One sample is also taken at the start and one at the stop.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, sensor: PowerSensor, *, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.sensor, self._interval_s, self._clock = sensor, interval_s, clock
        self._samples: list[tuple[float, float]] = []  # second, watts
        self._broken = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start to sample. A measurement that was not stopped is discarded."""
        self.stop()
        # Each measurement has its own list and event, so that a hanging thread of the previous one cannot change them.
        self._samples, self._stop, self._broken = [], threading.Event(), False
        self._thread = threading.Thread(
            target=self._watch, args=(self._samples, self._stop), name="edgedec-power", daemon=True
        )
        self._thread.start()

    def stop(self) -> Energy | None:
        """Stop to sample and return the energy; None if the sensor failed or the meter was not started."""
        thread, self._thread = self._thread, None
        if thread is None:
            return None
        self._stop.set()
        thread.join(_STOP_PATIENCE_S)
        if thread.is_alive():
            log.warning("power sensor %s does not answer; no power is reported", self.sensor.name)
            return None
        return None if self._broken else _energy(self.sensor.name, self._samples)

    def _watch(self, samples: list[tuple[float, float]], stop: threading.Event) -> None:
        while True:
            last = stop.is_set()
            try:
                before = self._clock()
                watts = self.sensor.read()
                samples.append(((before + self._clock()) / 2, watts))
            except (OSError, ValueError) as error:
                log.warning("power sensor %s: %s; no power is reported", self.sensor.name, error)
                if samples is self._samples:
                    self._broken = True
                return
            if last:
                return
            stop.wait(self._interval_s)


def _energy(name: str, samples: Sequence[tuple[float, float]]) -> Energy | None:
    seconds = samples[-1][0] - samples[0][0] if samples else 0.0
    if seconds <= 0:
        return None
    joules = sum((end - begin) * (before + after) / 2 for (begin, before), (end, after) in pairwise(samples))
    return Energy(watts=joules / seconds, joules=joules, seconds=seconds, samples=len(samples), sensor=name)
