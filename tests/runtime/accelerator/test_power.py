"""Test power from sensors, in files like the kernel's; a fault costs the figure and nothing else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.accelerator.power import PowerMeter, PowerSensor, _energy, find_sensor

KV260 = ("ina260_u14",)
PATIENCE_S = 60.0  # seconds until a test fails


def device(root: Path, number: int, name: str, **files: str) -> Path:
    folder = root / f"hwmon{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    for file, text in files.items():
        (folder / file).write_text(text)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write the sensor files of a KV260, among others."""
    device(tmp_path, 0, "ams", in1_input="850\n")
    device(tmp_path, 1, "ina260_u14", power1_input="4810000\n", in1_input="5000", curr1_input="900")
    (tmp_path / "hwmon2").mkdir()  # a sensor that has just disappeared
    return tmp_path


def sensor(root: Path) -> PowerSensor:
    match = find_sensor(KV260, root)
    assert match is not None
    return match


def test_power_is_read_from_its_sensor(root: Path) -> None:
    power_sensor = sensor(root)
    assert (power_sensor.name, power_sensor.files) == ("ina260_u14", (root / "hwmon1" / "power1_input",))
    assert power_sensor.read() == 4.81


def test_power_is_voltage_times_current_if_it_is_not_measured(tmp_path: Path) -> None:
    device(tmp_path, 0, "ina260_u14", in1_input="5012\n", curr1_input="900\n")
    assert sensor(tmp_path).read() == pytest.approx(5.012 * 0.9)


def test_a_voltage_of_another_rail_is_not_used(tmp_path: Path) -> None:
    device(tmp_path, 0, "ina260_u14", in1_input="12000", in1_label="vin", curr1_input="900", curr1_label="iout1")
    assert find_sensor(KV260, tmp_path) is None


@pytest.mark.parametrize("names", [(), ("ina226_u77",)])
def test_without_a_sensor_there_is_no_figure(
    root: Path, names: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert find_sensor(names, root) is None
    assert find_sensor(names, root / "there is none") is None
    assert caplog.messages == []


def test_the_first_present_sensor_is_used(root: Path) -> None:
    match = find_sensor(("no_such", "ams", *KV260), root)
    assert match is not None
    assert match.name == "ina260_u14"  # ams has a voltage and no current


def test_two_sensors_of_one_name_are_not_used(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    device(root, 7, "ina260_u14", power1_input="1\n")
    assert find_sensor(KV260, root) is None
    assert "2 sensors" in caplog.text


def sampled(meter: PowerMeter, samples: int = 1) -> None:
    """Wait until the meter's thread has taken that many samples."""
    end = time.monotonic() + PATIENCE_S
    while len(meter._samples) < samples:
        assert time.monotonic() < end, "no sample was taken"
        time.sleep(0.001)


class Clock:
    """Advance by an eighth of a second per read; each sample reads it twice, before and after."""

    def __init__(self) -> None:
        self._eighths = count()

    def __call__(self) -> float:
        return next(self._eighths) / 8


def test_a_run_has_its_energy(root: Path) -> None:
    meter = PowerMeter(sensor(root), interval_s=0.001, clock=Clock())
    for watts in (4.81, 6.0):  # a meter may be started again
        (root / "hwmon1" / "power1_input").write_text(f"{round(watts * 1e6)}\n")
        meter.start()
        sampled(meter, 3)
        energy = meter.stop()
        assert energy is not None
        assert energy.watts == pytest.approx(watts)
        assert energy.samples >= 4  # the last is taken at the end; the machine decides how many more
        assert energy.seconds == (energy.samples - 1) / 4
        assert energy.joules == pytest.approx(watts * energy.seconds)
        assert energy.as_json(3) == {
            "watts": watts,
            "joules": round(energy.joules, 4),
            "joules_per_token": round(energy.joules / 3, 6),
            "sensor": "ina260_u14",
            "samples": energy.samples,
        }
        assert energy.as_json(0)["joules_per_token"] is None
    assert not [thread for thread in threading.enumerate() if thread.name == "edgedec-power"]


def test_the_shortest_run_has_samples_at_both_ends(root: Path) -> None:
    meter = PowerMeter(sensor(root), interval_s=60)
    meter.start()
    sampled(meter)
    energy = meter.stop()
    assert energy is not None
    assert energy.samples == 2


def test_a_meter_that_was_not_started_has_no_figure(root: Path) -> None:
    meter = PowerMeter(sensor(root))
    assert meter.stop() is None
    with meter:
        pass
    assert meter.stop() is None


@pytest.mark.parametrize("text", ["", "N/A", "-1000", "0", "1e6", "99999999999999", "\xff"])
def test_garbage_costs_the_figure_only(root: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    meter = PowerMeter(sensor(root), interval_s=0.001)
    meter.start()
    sampled(meter)
    (root / "hwmon1" / "power1_input").write_bytes(text.encode("latin-1"))
    assert meter._thread is not None
    meter._thread.join(PATIENCE_S)  # it has read the garbage, and ended
    assert not meter._thread.is_alive()
    (root / "hwmon1" / "power1_input").write_text("4810000\n")  # a sensor that recovers does not restore the figure
    with caplog.at_level(logging.WARNING):
        assert meter.stop() is None
    assert caplog.text.count("power sensor ina260_u14") == 1
    meter.start()
    sampled(meter)
    assert meter.stop() is not None


def test_a_sensor_that_vanishes_costs_the_figure_only(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    meter = PowerMeter(sensor(root), interval_s=0.001)
    meter.start()
    (root / "hwmon1" / "power1_input").unlink()  # the sample at the end cannot be taken, unless an earlier one failed
    assert meter.stop() is None
    assert "no power is reported" in caplog.text


def test_a_bus_that_hangs_costs_the_figure_only(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = threading.Event()
    hung: list[threading.Thread] = []

    def read(sensor: PowerSensor) -> float:
        if not hung:
            hung.append(threading.current_thread())
            free.wait()
            raise OSError("the bus was reset")
        return 1.0

    monkeypatch.setattr("edgedec.runtime.accelerator.power._STOP_PATIENCE_S", 0.01)
    monkeypatch.setattr(PowerSensor, "read", read)
    meter = PowerMeter(sensor(root), interval_s=0.001)
    meter.start()
    while not hung:
        time.sleep(0.001)
    assert meter.stop() is None
    assert "does not answer" in caplog.text
    monkeypatch.undo()
    monkeypatch.setattr(PowerSensor, "read", read)
    meter.start()
    free.set()  # the thread that hung ends within the next run, and does not spoil it
    hung[0].join()
    sampled(meter)
    energy = meter.stop()
    assert energy is not None
    assert energy.watts == pytest.approx(1.0)


def test_energy_is_a_sum_of_trapezoids() -> None:
    energy = _energy("s", [(10.0, 2.0), (11.0, 4.0), (13.0, 0.0)])
    assert energy is not None
    assert (energy.joules, energy.seconds, energy.samples) == (7.0, 3.0, 3)
    assert energy.watts == pytest.approx(7 / 3)


@given(st.lists(st.tuples(st.floats(0.001, 10), st.floats(0, 100)), min_size=2))
def test_the_mean_lies_between_the_smallest_and_the_largest_sample(steps: list[tuple[float, float]]) -> None:
    def moments() -> Iterator[tuple[float, float]]:
        at = 0.0
        for number, (step, watts) in zip(count(), steps, strict=False):
            at += step if number else 0.0
            yield at, watts

    energy = _energy("s", list(moments()))
    assert energy is not None
    values = [watts for _, watts in steps]
    assert min(values) - 1e-9 <= energy.watts <= max(values) + 1e-9
