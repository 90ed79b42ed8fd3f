"""Test the measurement of the disk: direct reads where the file system has them, and the errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgedec.errors import BundleError
from edgedec.runtime.planning import disk_rate
from edgedec.runtime.planning.disk_rate import measure_disk


def test_small_and_large_files_are_measured(tmp_path: Path) -> None:
    for size in (1, 5000, 3 << 20):
        (tmp_path / "file").write_bytes(b"\1" * size)
        rate = measure_disk(tmp_path / "file")
        assert rate.bytes_per_second > 0


def test_pieces_are_spread_over_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_rate, "_PIECE_BYTES", 4096)
    monkeypatch.setattr(disk_rate, "_MOST_BYTES", 8 * 4096)
    (tmp_path / "file").write_bytes(b"\1" * (64 * 4096))
    places: list[int] = []
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, to, at: places.append(at) or read(file, to, at))  # type: ignore[func-returns-value]
    measure_disk(tmp_path / "file")
    assert places[-8:] == [8 * 4096 * at for at in range(8)]


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no direct reads")
def test_a_file_system_that_refuses_direct_reads_is_measured_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"\1" * 9000)
    read, opened = os.preadv, list[int]()

    def refuse(file: int, to: list[object], at: int) -> int:
        if not opened:
            opened.append(file)
            raise OSError(22, "Invalid argument")
        return read(file, to, at)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "preadv", refuse)
    assert not measure_disk(tmp_path / "file").direct


def test_a_file_that_is_missing_or_empty_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"file: cannot be read: No such file or directory"):
        measure_disk(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BundleError, match="it is empty"):
        measure_disk(tmp_path / "file")
