"""Test contiguous memory: its size, and the advice if there is too little."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgedec.errors import DeviceError
from edgedec.runtime.driver.cma import Cma, boot_argument, read_cma, shortage

MIB = 1 << 20
KRIA = Cma(total_bytes=1000 * MIB, free_bytes=900 * MIB)


def meminfo(folder: Path, *lines: str) -> Path:
    path = folder / "meminfo"
    path.write_text("\n".join(["MemTotal:        4030400 kB", *lines, "HugePages_Total:       0", ""]))
    return path


def test_the_sizes_of_the_system_are_read(tmp_path: Path) -> None:
    path = meminfo(tmp_path, "CmaTotal:         131072 kB", "CmaFree:           65540 kB")
    assert read_cma(path) == Cma(total_bytes=128 * MIB, free_bytes=64 * MIB + 4096)


@pytest.mark.parametrize(
    "lines", [(), ("CmaTotal: 131072 kB",), ("CmaTotal: 1 MB", "CmaFree: 1 kB"), ("XCmaTotal: 1 kB",)]
)
def test_a_system_without_contiguous_memory_has_none(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(DeviceError, match="has no CmaTotal and CmaFree: this system's kernel has no contiguous memory"):
        read_cma(meminfo(tmp_path, *lines))
    with pytest.raises(DeviceError, match=r"none cannot be read \(No such file"):
        read_cma(tmp_path / "none")


@pytest.mark.parametrize(
    ("required", "total", "free", "argument"),
    [
        (64 * MIB, 128 * MIB, 128 * MIB, "cma=192M"),  # it would fit, but in pieces: more than the total in any case
        (200 * MIB, 128 * MIB, 128 * MIB, "cma=256M"),  # 200 + 32 for a bitstream
        (200 * MIB, 128 * MIB, 100 * MIB, "cma=320M"),  # 28 are in use
        (1, 0, 0, "cma=64M"),
        (1, 0, 4096, "cma=64M"),
    ],
)
def test_the_boot_argument_is_rounded_up(required: int, total: int, free: int, argument: str) -> None:
    assert boot_argument(required, Cma(total_bytes=total, free_bytes=free)) == argument


def test_a_shortage_is_reported_and_enough_is_not(tmp_path: Path) -> None:
    path = meminfo(tmp_path, "CmaTotal: 131072 kB", "CmaFree: 65536 kB")
    cma = read_cma(path)
    assert cma.free_bytes == 64 * MIB
    message = r"needs 65.0 MiB of contiguous .*; 64.0 MiB of 128.0 MiB are free .* start the kernel with cma=192M: "
    assert re.match(message, shortage(65 * MIB, cma, root=tmp_path))


def test_the_advice_names_the_file_of_the_boot_argument(tmp_path: Path) -> None:
    assert "/etc/default/flash-kernel (Ubuntu) or /boot/uEnv.txt (PYNQ)" in shortage(MIB, KRIA, root=tmp_path)
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot" / "image.ub").touch()
    text = shortage(MIB, Cma(total_bytes=128 * MIB, free_bytes=0), root=tmp_path)
    assert 'echo "bootargs=$(cat /proc/cmdline) cma=192M" | sudo tee /boot/uEnv.txt' in text
    (tmp_path / "etc/default").mkdir(parents=True)
    (tmp_path / "etc/default/flash-kernel").touch()
    text = shortage(MIB, Cma(total_bytes=128 * MIB, free_bytes=0), root=tmp_path)
    assert 'LINUX_KERNEL_CMDLINE="cma=192M" to /etc/default/flash-kernel' in text
    assert "sudo flash-kernel" in text
    assert "below 4 GiB" not in text
    assert "below 4 GiB" in shortage(990 * MIB, KRIA, root=tmp_path)
