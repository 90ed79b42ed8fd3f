"""What a board draws, read from its own sensor while a model runs. A simulation has no such figure, and none is made up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["HWMON", "Energy", "PowerMeter", "PowerSensor", "find_sensor"]

HWMON = Path("/sys/class/hwmon")
INTERVAL_S = 0.05  # the KV260's INA260 has a new value six or seven times a second, so none is missed
_WAYS = (("power1_input",), ("in1_input", "curr1_input"))  # the bus voltage of an INA is in1
_MOST_WATTS = 1000.0  # more than any such board's supply gives
_STOP_PATIENCE_S = 2.0  # a bus that hangs must not hang the run

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PowerSensor:
    """A hwmon device that measures what the whole board, or its module, draws.

    Source: the kernel's Documentation/hwmon/sysfs-interface: ``powerN_input`` is in microwatts, ``inN_input`` in millivolts,
    ``currN_input`` in milliamperes.

    Members:
        name: as the kernel has it: ina260_u14 for the INA260 that measures the 5 V of the KV260's K26 module, processor,
            fabric and DRAM together (Linux, zynqmp-sck-kv-g-revB.dtso: an iio-hwmon of that name over its three channels).
        files: of power, or of voltage and current.
    """

    name: str
    files: tuple[Path, ...]

    def read(self) -> float:
        """Watts.

        Raises:
            OSError: it is gone, or its bus does not answer.
            ValueError: no number, or none that a board can draw.
        """
        values = [int(file.read_text()) for file in self.files]
        watts = values[0] / 1e6 if len(values) == 1 else values[0] * values[1] / 1e6
        if not 0 < watts <= _MOST_WATTS:
            raise ValueError(f"{watts} W")
        return watts


def find_sensor(names: Sequence[str], root: Path = HWMON) -> PowerSensor | None:
    """The first of a board's sensors that is there; None if none is, or it cannot be told which one it is.

    Args:
        names: of hwmon devices, ``Board.power_sensors``. Each of them measures all that counts: they are not added up.
    """
    try:
        devices = sorted(root.iterdir())
    except OSError:
        return None
    for name in names:
        found = [device for device in devices if _name(device) == name]
        if len(found) > 1:
            log.warning("%d sensors under %s are called %s; power is not measured", len(found), root, name)
            return None
        for files in _WAYS:
            paths = tuple(device / file for device in found for file in files)
            if paths and all(path.is_file() for path in paths) and not (len(files) > 1 and _is_labelled(found[0])):
                return PowerSensor(name=name, files=paths)
    return None


def _is_labelled(device: Path) -> bool:
    """PMBus drivers label what they give, and there the first voltage may be the input's, the first current the output's."""
    return any((device / f"{what}1_label").exists() for what in ("in", "curr"))


def _name(device: Path) -> str | None:
    try:
        return (device / "name").read_text().strip()
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, kw_only=True)
class Energy:
    """What was measured between ``start`` and ``stop``.

    Members:
        watts: mean over ``seconds``.
        joules: integral of the samples by trapezoids.
        samples: how many there were, at least 2.
        sensor: its name.
    """

    watts: float
    joules: float
    seconds: float
    samples: int
    sensor: str

    def as_json(self, tokens: int) -> dict[str, Any]:
        """For ``timings``; ``joules_per_token`` is None where no token was made."""
        return {
            "watts": round(self.watts, 3),
            "joules": round(self.joules, 4),
            "joules_per_token": round(self.joules / tokens, 6) if tokens > 0 else None,
            "sensor": self.sensor,
            "samples": self.samples,
        }


class PowerMeter:
    """Samples a sensor from a thread, between ``start`` and ``stop``; then it may be started again.

    A sensor that vanishes or says nonsense costs the figure, never the run: it is logged, and ``stop`` gives None.

    Args:
        interval_s: between two samples; one is taken at either end besides.
        clock: seconds that only go forward.
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
        """Begins anew; what was not stopped is forgotten."""
        self.stop()
        # Of this run alone: a thread that hung in the last one has the last one's.
        self._samples, self._stop, self._broken = [], threading.Event(), False
        self._thread = threading.Thread(
            target=self._watch, args=(self._samples, self._stop), name="edgedec-power", daemon=True
        )
        self._thread.start()

    def stop(self) -> Energy | None:
        """What was measured; None if the sensor failed, or nothing was started."""
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
