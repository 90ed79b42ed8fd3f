"""Test that spilled rows come back bit for bit or not at all, and that no file stays."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime.cache.block_pool import HeldRows
from edgedec.runtime.engine.spill import Part, SpillError, SpillFolder
from edgedec.runtime.row_recipe import CAUSAL, Causal

IDS = [5, 6, 7, 2**31 - 1]


@dataclass
class Rows:
    """A sequence of so many rows with parts of some bytes for each row, filled from a seed."""

    sizes: Sequence[int] = (16, 0, 250)
    seed: int | None = None
    name: str = "int8, 4 heads"
    length: int = len(IDS)
    arrays: list[Part] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        if self.seed is None:
            self.length = 0
        self.arrays = [rng.integers(0, 256, size * self.length, np.uint8) for size in self.sizes]

    @property
    def held_rows(self) -> HeldRows:
        return HeldRows(self.length, ())

    def truncate(self, length: int) -> int:
        self.restore(self.held_rows, length)
        return length

    def rows_layout(self) -> str:
        return self.name

    def part_sizes(self, held: HeldRows) -> Sequence[int]:
        return [size * held.rows for size in self.sizes]

    def fits(self, held: HeldRows, length: int) -> bool:
        return True

    def read_part(self, part: int) -> Part:
        return self.arrays[part]

    def restore(self, held: HeldRows, length: int) -> None:
        self.length = length
        self.arrays = [np.zeros(size * length, np.uint8) for size in self.sizes]

    def write_part(self, part: int, data: Part, held: HeldRows) -> None:
        self.arrays[part][...] = data[: self.sizes[part] * self.length]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SpillFolder]:
    with SpillFolder(tmp_path / "spill", model="model") as folder:
        yield folder


def files(path: Path) -> list[Path]:
    """Return all files but the locks."""
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name != "lock")


def equal(left: Rows, right: Rows) -> bool:
    same = all(np.array_equal(one, other) for one, other in zip(left.arrays, right.arrays, strict=True))
    return left.length == right.length and same


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(
    st.lists(st.integers(0, 900), max_size=6), st.integers(0, 1 << 30), st.lists(st.integers(0, 2**31 - 1), max_size=9)
)
def test_rows_come_back_bit_for_bit(folder: SpillFolder, sizes: list[int], seed: int, ids: list[int]) -> None:
    rows, back = Rows(sizes, seed, length=len(ids)), Rows(sizes)
    spilled = folder.write(ids, rows, CAUSAL)
    assert spilled.nbytes == spilled.file.stat().st_size == folder.nbytes
    folder.read(spilled, back, len(ids), CAUSAL)
    assert equal(rows, back)
    folder.discard(spilled)
    folder.discard(spilled)
    assert (folder.nbytes, files(folder.path)) == (0, [])


@pytest.mark.parametrize("count", range(5))
def test_the_first_rows_alone_can_be_read(folder: SpillFolder, count: int) -> None:
    rows, back = Rows(seed=1), Rows()
    folder.read(folder.write(IDS, rows, CAUSAL), back, count, CAUSAL)
    assert back.length == count
    for size, whole, part in zip(rows.sizes, rows.arrays, back.arrays, strict=True):
        assert np.array_equal(whole[: size * count], part)


def test_the_format_is_the_documented_one(folder: SpillFolder) -> None:
    rows = Rows((3, 2), seed=1)
    content = folder.write(IDS, rows, CAUSAL).file.read_bytes()
    binding = hashlib.sha256()
    for part in (b"model", b"int8, 4 heads", b"causal", np.array(IDS, "<i4").tobytes()):
        binding.update(struct.pack("<Q", len(part)) + part)
    head = b"EDSPILL1" + binding.digest() + struct.pack("<3Q", 2, 12, 8)
    body = head + rows.arrays[0].tobytes() + rows.arrays[1].tobytes()
    assert content == body + hashlib.sha256(body).digest()


def test_rows_can_be_read_again_and_written_again(folder: SpillFolder) -> None:
    rows, back = Rows(seed=1), Rows()
    first, second = folder.write(IDS, rows, CAUSAL), folder.write(IDS, Rows(seed=2), CAUSAL)
    assert first.file != second.file
    for _ in range(2):
        folder.read(first, back, 4, CAUSAL)
        assert equal(rows, back)
    folder.read(second, back, 4, CAUSAL)
    assert equal(Rows(seed=2), back)


def test_other_numbers_of_rows_are_refused(folder: SpillFolder) -> None:
    with pytest.raises(UsageError, match="a sequence of 4 rows cannot be written with 3 ids"):
        folder.write(IDS[:3], Rows(seed=1), CAUSAL)
    spilled = folder.write(IDS, Rows(seed=1), CAUSAL)
    for rows in (-1, 5):
        with pytest.raises(UsageError, match=f"has 4 rows, not {rows}"):
            folder.read(spilled, Rows(), rows, CAUSAL)


# --- what differs is refused ------------------------------------------------------------------------------------------


def test_other_rows_are_refused(tmp_path: Path, folder: SpillFolder) -> None:
    spilled = folder.write(IDS, Rows(seed=1), CAUSAL)
    message = "is of another model, layout, recipe or text|has another size"
    for rows in (Rows(name="int8, 5 heads"), Rows((16, 1, 249)), Rows((16, 0, 251)), Rows((266,)), Rows((16, 250))):
        with pytest.raises(SpillError, match=message):
            folder.read(spilled, rows, 4, CAUSAL)
        assert rows.length == 0
    for ids in ([5, 6, 8, IDS[3]], [6, 5, 7, IDS[3]], [*IDS, 0]):
        held = HeldRows(len(ids), ())
        with pytest.raises(SpillError, match=message):
            folder.read(replace(spilled, ids=ids, held=held), Rows(), 4, CAUSAL)
    with SpillFolder(tmp_path / "other", model="model 2") as other, pytest.raises(SpillError, match=message):
        other.read(spilled, Rows(), 4, CAUSAL)


def test_rows_of_another_recipe_are_refused_by_name_and_not_found(folder: SpillFolder) -> None:
    spilled, other = folder.write(IDS, Rows(seed=1), CAUSAL), Causal(name="other rows")
    assert (spilled.shared(IDS, CAUSAL), spilled.shared(IDS, other)) == (4, 0)
    with pytest.raises(SpillError, match=r"the rows of .* are causal, and those of this text other rows"):
        folder.read(spilled, Rows(), 4, other)
    with pytest.raises(SpillError, match="is of another model, layout, recipe or text"):  # a file that lies
        folder.read(replace(spilled, recipe=other.name), Rows(), 4, other)


def test_fields_of_the_binding_cannot_be_shifted(tmp_path: Path, folder: SpillFolder) -> None:
    """Move the end of the model's hash to the begin of the layout."""
    spilled = folder.write(IDS, Rows(seed=1, name="x"), CAUSAL)
    with SpillFolder(tmp_path / "other", model="mode") as other, pytest.raises(SpillError, match="is of another model"):
        other.read(spilled, Rows(name="lx"), 4, CAUSAL)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(st.data())
def test_every_changed_bit_is_detected(folder: SpillFolder, data: st.DataObject) -> None:
    spilled = folder.write(IDS, Rows(seed=1), CAUSAL)
    content = bytearray(spilled.file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    spilled.file.write_bytes(content)
    with pytest.raises(SpillError):
        folder.read(spilled, Rows(), 4, CAUSAL)
    folder.discard(spilled)


@pytest.mark.parametrize("change", ["shorter", "longer", "empty", "missing", "folder"])
def test_files_of_another_size_are_refused(folder: SpillFolder, change: str) -> None:
    spilled = folder.write(IDS, Rows(seed=1), CAUSAL)
    content = spilled.file.read_bytes()
    spilled.file.unlink()
    if change == "folder":
        spilled.file.mkdir()
    elif change != "missing":
        spilled.file.write_bytes({"shorter": content[:-1], "longer": content + b"\0", "empty": b""}[change])
    with pytest.raises(SpillError, match=r"has another size|cannot be read"):
        folder.read(spilled, Rows(), 4, CAUSAL)
    folder.discard(spilled)


# --- full disks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [0, 40, 500, 1100])
def test_a_full_disk_leaves_nothing(folder: SpillFolder, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    real, left = os.write, written

    def write(descriptor: int, data: memoryview) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = real(descriptor, data[:left])  # disks may take a part of what is written
        left -= count
        return count

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(EdgedecError, match=r"the disk is full; free some space"):
        folder.write(IDS, Rows(seed=1), CAUSAL)
    monkeypatch.undo()
    assert (files(folder.path), folder.nbytes) == ([], 0)
    folder.read(folder.write(IDS, Rows(seed=1), CAUSAL), Rows(), 4, CAUSAL)


def test_the_limit_holds_for_all_files_together(tmp_path: Path) -> None:
    with SpillFolder(tmp_path, model="", limit_bytes=2600) as folder:
        first = folder.write(IDS, Rows(seed=1), CAUSAL)
        folder.write(IDS, Rows(seed=1), CAUSAL)
        with pytest.raises(EdgedecError, match=r"needs 1.1 KiB on the disk, of which 264 B of 2.5 KiB"):
            folder.write(IDS, Rows(seed=1), CAUSAL)
        folder.discard(first)
        folder.write(IDS, Rows(seed=1), CAUSAL)
        assert len(files(folder.path)) == 2


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        EdgedecError, match=r"cannot keep idle sequences in .*file/spill: Not a directory; choose another"
    ):
        SpillFolder(tmp_path / "file" / "spill", model="")


# --- the end ----------------------------------------------------------------------------------------------------------


def test_closing_removes_everything(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path, model="")
    folder.write(IDS, Rows(seed=1), CAUSAL)
    (folder.path / "half").write_bytes(b"left by a write that was interrupted")
    folder.close()
    folder.close()
    assert (files(tmp_path), folder.path.exists(), folder.nbytes) == ([], False, 0)
    with pytest.raises(UsageError, match=r"is closed; open another SpillFolder"):
        folder.write(IDS, Rows(seed=1), CAUSAL)


def test_only_the_user_can_read_the_files(folder: SpillFolder) -> None:
    spilled = folder.write(IDS, Rows(seed=1), CAUSAL)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(spilled.file.stat().st_mode) == 0o600


_CHILD = """
import sys, time
from pathlib import Path
import numpy as np
from edgedec.runtime.cache.block_pool import HeldRows
from edgedec.runtime.engine.spill import SpillFolder
from edgedec.runtime.row_recipe import CAUSAL

class Rows:
    length, held_rows = 1, HeldRows(1, ())
    def rows_layout(self): return ""
    def part_sizes(self, held): return [9]
    def read_part(self, part): return np.ones(9, np.uint8)

folder = SpillFolder(Path(sys.argv[1]), model="")
print(folder.write([7], Rows(), CAUSAL).file, flush=True)
time.sleep(60)
"""


def test_the_files_of_a_killed_process_are_removed_and_those_of_a_running_one_stay(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        file = Path(child.stdout.readline().strip())
        with SpillFolder(tmp_path, model=""):
            assert file.is_file()
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert file.is_file()
    with SpillFolder(tmp_path, model=""):
        assert not file.parent.exists()


def test_other_things_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    names = ["mine", "12-abc", "12-0123456789abcdef0"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").write_text("")
    (tmp_path / "12-0123456789abcdee").symlink_to(tmp_path / "mine")
    (tmp_path / "12-0123456789abcdef").mkdir()  # its process was killed before it made its lock
    with SpillFolder(tmp_path, model=""):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "12-0123456789abcdee", "lock"])
    assert (tmp_path / "mine" / "lock").exists()
