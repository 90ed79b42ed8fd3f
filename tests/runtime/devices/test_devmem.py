"""Test device devmem with files in the place of the system's: registers, contiguous memory, and what it refuses."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from edgedec.device import CacheSettings, open_device
from edgedec.errors import DeviceError
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.devices._memory_ports import MEMORY_PORTS
from edgedec.runtime.devices.devmem import DevmemBuffer, _Pool, map_words
from edgedec.runtime.driver.udmabuf import UdmaBuf, find_buffers, udmabuf_bytes
from edgedec.sim.devices.interpreter import InterpreterDevice
from tests.runtime.devices.support.fake_board import bitstream
from tests.runtime.devices.support.fake_devmem import Piece, open_devmem
from tests.sim.support.make_small_top import CONFIG

PAGE = 4096


def udmabuf(system: Path, name: str, **settings: str) -> Path:
    """Make the files of a buffer of u-dma-buf; return its folder of settings."""
    folder = system / "sys" / "class" / "u-dma-buf" / name
    folder.mkdir(parents=True)
    values = {"phys_addr": "0x0000000070000000", "size": str(2 * PAGE), "dma_coherent": "0", **settings}
    for key, value in values.items():
        (folder / key).write_text(value + "\n")
    device = system / "dev" / name
    device.parent.mkdir(parents=True, exist_ok=True)
    device.write_bytes(bytes(2 * PAGE))
    return folder


def test_words_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mem"
    file.write_bytes(bytes(range(256)) * 48)
    words = map_words(PAGE + 0x40, 0x20, path=file)
    assert words.read(4) == int.from_bytes(bytes(range(0x44, 0x48)), "little")
    words.write(8, 0x89ABCDEF)
    content, at = file.read_bytes(), PAGE + 0x48
    assert content[at : at + 4] == (0x89ABCDEF).to_bytes(4, "little")
    assert content[:at] + bytes(range(0x48, 0x4C)) + content[at + 4 :] == bytes(range(256)) * 48
    with pytest.raises(DeviceError, match=r"none cannot be mapped at 0x1000: .*; run as root"):
        map_words(PAGE, 4, path=tmp_path / "none")


def test_a_buffer_is_synchronized_by_its_settings(tmp_path: Path) -> None:
    folder = udmabuf(tmp_path, "edgedec0")
    (buffer,) = find_buffers(tmp_path)
    assert (buffer.address, buffer.array.size) == (0x7000_0000, 2 * PAGE)
    buffer.array[PAGE] = 7
    assert (tmp_path / "dev" / "edgedec0").read_bytes()[PAGE] == 7
    for act, action, direction in ((buffer.flush, "sync_for_device", 1), (buffer.invalidate, "sync_for_cpu", 2)):
        act(PAGE, 64)
        names = ("sync_offset", "sync_size", "sync_direction", action)
        assert [int((folder / name).read_text()) for name in names] == [PAGE, 64, direction, 1]


def test_the_compiled_loop_gets_the_settings_as_open_files(tmp_path: Path) -> None:
    folder = udmabuf(tmp_path, "edgedec0")
    for name in ("offset", "size", "direction", "for_device", "for_cpu"):
        (folder / f"sync_{name}").write_text("")
    (buffer,) = find_buffers(tmp_path)
    settings = buffer.cache_settings(PAGE)
    assert isinstance(settings, CacheSettings)
    assert settings.start == PAGE
    for name in ("offset", "size", "direction", "for_device", "for_cpu"):
        os.pwrite(getattr(settings, name), name.encode(), 0)
        assert (folder / f"sync_{name}").read_text() == name
    assert buffer.cache_settings(0) == replace(settings, start=0)  # the same files
    (coherent,) = find_buffers(_coherent(tmp_path))
    assert coherent.cache_settings(0) == "coherent"
    other = udmabuf(tmp_path / "without", "edgedec0")
    with pytest.raises(DeviceError, match=rf"{other}/sync_offset cannot be written: .*; run as root"):
        find_buffers(tmp_path / "without")[0].cache_settings(0)


def _coherent(folder: Path) -> Path:
    udmabuf(folder / "coherent", "edgedec0", dma_coherent="1")
    return folder / "coherent"


def test_a_coherent_buffer_is_not_synchronized(tmp_path: Path) -> None:
    folder = udmabuf(tmp_path, "edgedec0", dma_coherent="1")
    (buffer,) = find_buffers(tmp_path)
    buffer.flush(0, PAGE)
    assert not (folder / "sync_for_device").exists()


def test_buffers_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    udmabuf(tmp_path, "udmabuf0")
    with pytest.raises(
        DeviceError, match=r"no buffer whose name begins with edgedec: load .* 'create edgedecN 0x4000000'"
    ):
        find_buffers(tmp_path)
    for name in ("edgedec1", "edgedec0"):
        udmabuf(tmp_path, name, phys_addr=f"0x{8 if name == 'edgedec0' else 4}0000000")
    assert [buffer.address for buffer in find_buffers(tmp_path)] == [0x8000_0000, 0x4000_0000]
    assert udmabuf_bytes(tmp_path) == [2 * PAGE, 2 * PAGE]
    (tmp_path / "sys" / "class" / "u-dma-buf" / "edgedec0" / "size").unlink()
    assert udmabuf_bytes(tmp_path) == [2 * PAGE]


@pytest.mark.parametrize(("name", "value"), [("phys_addr", "none"), ("size", "")])
def test_damaged_settings_are_refused(tmp_path: Path, name: str, value: str) -> None:
    folder = udmabuf(tmp_path, "edgedec0", **{name: value})
    with pytest.raises(DeviceError, match=rf"{name} cannot be read: .*; load the kernel module u-dma-buf again"):
        UdmaBuf(folder, tmp_path / "dev")


def test_a_buffer_without_its_device_file_is_refused(tmp_path: Path) -> None:
    folder = udmabuf(tmp_path, "edgedec0")
    (tmp_path / "dev" / "edgedec0").unlink()
    with pytest.raises(DeviceError, match=r"edgedec0 cannot be mapped: .*; run as root"):
        UdmaBuf(folder, tmp_path / "dev")


def test_an_empty_fabric_is_never_accessed(tmp_path: Path) -> None:
    state = tmp_path / "sys" / "class" / "fpga_manager" / "fpga0" / "state"
    state.parent.mkdir(parents=True)
    state.write_text("unknown\n")
    with pytest.raises(DeviceError, match=r"state says 'unknown': no bitstream is loaded; load .*edgedec.bit"):
        open_device(
            "devmem", CONFIG, bitstream=bitstream(CONFIG, tmp_path), lock_folder=tmp_path, system=tmp_path, memories=[]
        )


def test_another_bitstream_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    device = InterpreterDevice(CONFIG, rtlil_hash=5)
    before = device.read_register(REGISTER_MAP["status"].offset)
    with pytest.raises(DeviceError, match=r"register rtlil_hash reads 0000000000000005, .*hwh says"):
        open_devmem(CONFIG, tmp_path, device=device)
    assert device.read_register(REGISTER_MAP["status"].offset) == before
    open_devmem(CONFIG, tmp_path).close()  # the lock is free


def test_the_ports_to_memory_are_set(tmp_path: Path) -> None:
    written: dict[int, int] = {}
    open_devmem(CONFIG, tmp_path, written=written).close()
    ports = MEMORY_PORTS["zynq_ultra_ps_e"]
    assert {value for address, value in written.items() if address & 0xFFFF == ports.read_commands} == {ports.commands}


def test_one_process_has_the_board(tmp_path: Path) -> None:
    device = open_devmem(CONFIG, tmp_path)
    with pytest.raises(DeviceError, match="is in use by process"):
        open_devmem(CONFIG, tmp_path)
    device.close()
    with pytest.raises(DeviceError, match="device devmem is closed"):
        device.wait(0)
    open_devmem(CONFIG, tmp_path).close()


def test_what_no_piece_holds_is_refused_by_its_bytes(tmp_path: Path) -> None:
    device = open_devmem(CONFIG, tmp_path, pieces=(4 * PAGE, 2 * PAGE))
    device.allocate(PAGE)
    rest = rf"{5 * PAGE} of {6 * PAGE} .* largest piece has {3 * PAGE}: load the kernel"
    with pytest.raises(DeviceError, match=rf"needs {4 * PAGE} bytes in one piece; {rest}"):
        device.allocate(4 * PAGE)
    device.close()


def test_a_buffer_writes_back_whole_pages(tmp_path: Path) -> None:
    piece = Piece(InterpreterDevice(CONFIG).allocate(4 * PAGE))
    held: list[object] = []
    pool = _Pool([piece])
    first, second = (DevmemBuffer(pool, 100, 1, held) for _ in range(2))
    assert second.address == first.address + PAGE
    first.flush()
    assert piece.flushed == [(0, PAGE)]
    first.close()
    first.close()
    assert (held, first.array.size) == ([second], 0)
