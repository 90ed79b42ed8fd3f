"""Files of weights in huge pages: the same bytes as mapped, and mapped wherever huge pages are not possible."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.environment import HUGE_PAGES
from edgedec.runtime.kernels.weights import huge_pages
from edgedec.runtime.kernels.weights.huge_pages import FileReader, file_bytes, huge_page_bytes

ENABLED = "sys/kernel/mm/transparent_hugepage/enabled"
needs_huge_pages = pytest.mark.skipif(not huge_page_bytes(), reason="this system gives no huge pages on request")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(np.random.default_rng(0).integers(0, 256, 3_000_017, np.uint8).tobytes())
    return path


def in_a_file(array: NDArray[np.uint8]) -> bool:
    """Return whether the memory of an array is mapped from a file."""
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        start, stop = (int(part, 16) for part in fields[0].split("-"))
        if start <= address < stop:
            return len(fields) == 6 and fields[5].startswith("/")
    raise AssertionError("the array is in no mapping")


@needs_huge_pages
@pytest.mark.parametrize(("offset", "nbytes"), [(0, None), (4096, 2_500_001), (64, 2_100_000)])
def test_bytes_in_huge_pages_are_those_of_the_file(
    file: Path, offset: int, nbytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_pages, "LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(huge_pages, "_PIECE_BYTES", 1_000_003)
    array = file_bytes(file, offset, nbytes)
    stop = None if nbytes is None else offset + nbytes
    assert array.tobytes() == file.read_bytes()[offset:stop]
    assert not in_a_file(array)
    assert array.ctypes.data % huge_page_bytes() == 0
    assert not array.flags.writeable


@pytest.mark.parametrize("reason", ["switch", "small", "memory", "system"])
def test_files_are_mapped_where_huge_pages_are_not_possible(
    file: Path, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason != "small":
        monkeypatch.setattr(huge_pages, "LEAST_BYTES", 1 << 20)
    if reason == "switch":
        monkeypatch.setenv(HUGE_PAGES.name, "0")
    if reason == "memory":
        monkeypatch.setattr(huge_pages, "_free_bytes", lambda: 3_999_999)
    if reason == "system":
        monkeypatch.setattr(huge_pages, "huge_page_bytes", lambda: 0)
    array = file_bytes(file, 4096, 2_000_000)
    assert array.tobytes() == file.read_bytes()[4096:2_004_096]
    assert in_a_file(array)


def test_a_file_that_is_too_short_is_refused(file: Path) -> None:
    with pytest.raises(OSError, match=re.escape("has 2999017 bytes from 1000 on, and 3000000 are needed")):
        file_bytes(file, 1000, 3_000_000)


@needs_huge_pages
def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(huge_pages, "_PIECE_BYTES", 1_000_000)
    read = os.preadv

    def shorter(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        os.truncate(file, 1_500_000)
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", shorter)
    reader = FileReader()
    reader.begin(file)
    with pytest.raises(OSError, match=re.escape(f"{file}: ended after 1500000 bytes while it was read")):
        reader.finish()


@needs_huge_pages
def test_parts_that_are_still_read_count_as_taken_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(huge_pages, "_free_bytes", lambda: 5_000_000)
    begun, read = threading.Event(), os.preadv

    def waits(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        begun.wait(30)
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", waits)
    reader = FileReader()
    first, second = reader.begin(file, 0, 2_000_000), reader.begin(file, 0, 2_000_000)
    begun.set()
    reader.finish()
    third = reader.begin(file, 0, 2_000_000)  # the system's own figure has the bytes that were read
    reader.finish()
    assert [in_a_file(array) for array in (first, second, third)] == [False, True, False]


@pytest.mark.parametrize(
    ("text", "size"), [("always [madvise] never\n", 2097152), ("[always] madvise never\n", 2097152)]
)
def test_the_size_is_read_from_the_system(tmp_path: Path, text: str, size: int) -> None:
    enabled = tmp_path / ENABLED
    enabled.parent.mkdir(parents=True)
    assert huge_page_bytes(tmp_path) == 0  # no such files
    enabled.write_text(text)
    assert huge_page_bytes(tmp_path) == 0  # no size
    enabled.with_name("hpage_pmd_size").write_text(f"{size}\n")
    assert huge_page_bytes(tmp_path) == size
    enabled.write_text("always madvise [never]\n")
    assert huge_page_bytes(tmp_path) == 0
