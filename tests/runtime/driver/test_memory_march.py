"""Test the march over a device's memory: what it covers, and what it says of lines that are stuck."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from edgedec.device import open_device
from edgedec.errors import DeviceError
from edgedec.runtime.driver.memory_march import march, told
from edgedec.sim.devices.interpreter import InterpreterDevice
from tests.sim.support.make_small_top import CONFIG

AREA = 2 * CONFIG.kv_heads * CONFIG.kv_layout.beats(CONFIG.context) * CONFIG.beat_bytes  # bytes of one COPY


class Broken(InterpreterDevice):
    """Change what the accelerator writes to memory, or what any read of it gives."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        super().__init__(CONFIG)
        self._change = change

    def wait(self, timeout_s: float) -> bool:
        high = super().wait(timeout_s)
        for memory in self._memories:
            self._change(memory.bytes)
        return high


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, slots=3), replace(CONFIG, ports=1, context=45)])
def test_every_byte_is_moved_by_the_accelerator(config: Any) -> None:
    device = open_device("interpreter", config)
    found = march(device, config, 3 * AREA)
    assert found.fault is None
    assert found.moved
    assert found.tested_bytes >= AREA
    assert not device._memories, "all buffers are free again"  # type: ignore[attr-defined]


def test_an_accelerator_with_one_slot_is_tested_by_the_host_alone() -> None:
    config = replace(CONFIG, slots=1)
    found = march(open_device("interpreter", config), config, AREA)
    assert (found.fault, found.moved) == (None, False)


def test_a_wrong_byte_is_named_with_its_address_and_bits() -> None:
    written: list[Any] = []

    def damage(memory: Any) -> None:
        if memory[:4].tobytes() != b"edec" and not written:  # not the program
            memory[AREA // 4] ^= 0x12
            written.append(memory)

    device = Broken(damage)
    found = march(device, CONFIG, AREA)
    assert found.fault is not None
    assert found.fault.expected ^ found.fault.found == 0x12
    assert found.fault.wrong_bytes == 1
    assert bin(found.fault.bits).count("1") == 2
    assert "1 bytes near it are wrong, in bits" in told(found.fault)


def test_a_memory_smaller_than_an_area_is_tested_with_smaller_ones() -> None:
    device = InterpreterDevice(CONFIG)
    plain, taken = device.allocate, list[int]()

    def small(size_bytes: int, *, alignment_bytes: int = 4096) -> Any:
        if sum(taken) + size_bytes > 80_000:
            raise DeviceError(f"no {size_bytes} bytes")
        taken.append(size_bytes)
        return plain(size_bytes, alignment_bytes=alignment_bytes)

    device.allocate = small  # type: ignore[method-assign]
    found = march(device, CONFIG, 1 << 40)
    assert found.fault is None
    assert len(taken) > 2
    assert 80_000 - sum(taken) < 8192


def test_two_areas_in_one_place_are_found() -> None:
    """Let an address line be stuck: the second area lies where the first one does."""
    device = InterpreterDevice(CONFIG)
    plain, first = device.allocate, []

    def aliased(size_bytes: int, *, alignment_bytes: int = 4096) -> Any:
        buffer = plain(size_bytes, alignment_bytes=alignment_bytes)
        if size_bytes >= 14 * AREA:
            first.append(buffer)
            if len(first) == 2:
                buffer.memory, buffer.address = first[0].memory, first[0].address
        return buffer

    device.allocate = aliased  # type: ignore[method-assign]
    config = replace(CONFIG, instructions=16)  # 14 COPY in an area
    device._runner._config = config
    device._registers["configuration_hash"] = config.hash
    found = march(device, config, 28 * AREA)
    assert found.fault is not None
    assert found.fault.wrong_bytes > AREA


def test_a_memory_that_is_too_small_is_an_error() -> None:
    device = InterpreterDevice(CONFIG)

    def full(size_bytes: int, *, alignment_bytes: int = 4096) -> Any:
        raise DeviceError(f"no {size_bytes} bytes")

    device.allocate = full  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match=r"no \d+ bytes"):
        march(device, CONFIG, AREA)
