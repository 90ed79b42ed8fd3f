"""Test device, precision and the settings that a resumed run keeps."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from edgedec.errors import DeviceError, UsageError
from edgedec.quantize.distil import devices
from edgedec.quantize.distil.devices import Place, find_place
from tests.quantize.distil.support.make_teachers import CPU

pytestmark = pytest.mark.compare


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("device", "precision", "message"),
    [
        ("tpu", "auto", "--device must be one of auto, cpu, cuda, not 'tpu'"),
        ("cpu", "float16", "--precision must be one of auto, float32, bfloat16, not 'float16'"),
    ],
)
def test_unknown_names_are_refused(device: str, precision: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_place(device, precision)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_an_absent_device_is_refused() -> None:
    with pytest.raises(DeviceError, match="torch finds no CUDA device; use --device cpu"):
        find_place("cuda", "auto")
    assert find_place("auto", "float32").device.type == "cpu"


def test_more_processes_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(DeviceError, match=r"2 devices cannot serve process 3 .* smaller --nproc-per-node"):
        find_place("cuda", "float32")


def test_a_group_that_cannot_be_joined_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(DeviceError, match=r"cannot join the group of 2 processes: .*; start them with torchrun"):
        find_place("cpu", "float32")


@pytest.mark.parametrize("pays", [False, True])
def test_auto_takes_the_faster_precision(monkeypatch: pytest.MonkeyPatch, pays: bool) -> None:
    monkeypatch.setattr(devices, "_bfloat16_pays", lambda device: pays)
    auto, explicit = find_place("cpu", "auto"), find_place("cpu", "bfloat16")
    assert (auto.autocast, auto.measured) == (pays, True)
    assert (explicit.autocast, explicit.measured) == (True, False)


def test_a_run_keeps_its_first_measurement() -> None:
    """Check this because a second measurement may differ on a busy machine, and must not make the run be refused."""
    place = replace(CPU, autocast=True, measured=True)
    assert place.settings(0, {})["autocast"] is True
    assert place.settings(0, {"autocast": False})["autocast"] is False
    assert place.settings(0, {"autocast": "nonsense"})["autocast"] is True
    assert replace(place, measured=False).settings(0, {"autocast": False})["autocast"] is True


def test_a_resumed_run_keeps_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8))
    cases: list[tuple[Place, int, dict[str, Any], int]] = [
        (CPU, 0, {}, 8),
        (replace(CPU, local=3), 0, {}, 2),
        (replace(CPU, local=9), 0, {}, 1),
        (CPU, 0, {"threads": 5}, 5),
        (CPU, 3, {"threads": 5}, 3),
        (CPU, 0, {"threads": "many"}, 8),
        (CPU, 0, {"threads": -1}, 8),
    ]
    for place, threads, stored, want in cases:
        assert place.settings(threads, stored)["threads"] == want


def test_settled_settings_are_in_force() -> None:
    before = torch.get_num_threads()
    try:
        settings = replace(CPU, measured=True).settings(2, {"autocast": True})
        place = CPU.settle(settings | {"autocast": True})
        assert torch.get_num_threads() == 2
        assert place.autocast
        assert settings | {"torch": ""} == {
            "autocast": True,
            "device": "cpu",
            "processes": 1,
            "threads": 2,
            "torch": "",
        }
    finally:
        torch.set_num_threads(before)
