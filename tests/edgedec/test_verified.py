"""Test what is remembered of checked files: no change is missed, and nothing that goes wrong with the records matters."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from edgedec.bundle import verified
from edgedec.bundle.verified import LEAST_BYTES, MOST_RECORDS, FileState, is_new, is_verified, verifying

CLAIM = "the weights of a manifest"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the records, in a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/edgedec/verified"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a large file that was changed a second ago."""
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(LEAST_BYTES))
    settle(path)
    return path


def settle(path: Path) -> None:
    """Wait until a change of the file would have another time."""
    while not FileState.of(path).is_settled(time.time_ns()):
        time.sleep(0.005)


def check(path: Path) -> None:
    with verifying(path, CLAIM):
        path.read_bytes()


def test_a_checked_file_is_known(file: Path) -> None:
    assert not is_verified(file, CLAIM)
    check(file)
    assert is_verified(file, CLAIM)
    assert not is_verified(file, "another claim")


def test_a_file_is_new_until_its_present_state_was_checked(file: Path, cache: Path) -> None:
    """A session imports what a check needs before its memory is measured, if it knows that there will be a check."""
    assert is_new(file)
    check(file)
    assert not is_new(file)
    os.link(file, file.with_name("link"))  # this changes the file's ctime
    assert not is_verified(file, CLAIM)
    assert is_new(file)
    settle(file)
    check(file)
    assert not is_new(file)
    (record,) = cache.iterdir()
    for content in (b"", b"[]", b"{}", b"{"):
        record.write_bytes(content)
        assert is_new(file)
    os.truncate(file, LEAST_BYTES - 1)
    assert not is_new(file)
    assert not is_new(file.with_name("nothing"))


def change_in_place(path: Path) -> None:
    with path.open("r+b") as opened:
        opened.seek(1000)
        opened.write(b"x")


def change_and_restore_the_time(path: Path) -> None:
    before = path.stat()
    change_in_place(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def replace_with_equal_times(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"x" * LEAST_BYTES)
    shutil.copystat(path, other)
    other.replace(path)


def shorten(path: Path) -> None:
    os.truncate(path, LEAST_BYTES + 1)


def link_to_another(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"x" * LEAST_BYTES)
    path.unlink()
    path.symlink_to(other)


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    "change", [change_in_place, change_and_restore_the_time, replace_with_equal_times, shorten, link_to_another]
)
def test_any_change_is_noticed(file: Path, change: object) -> None:
    check(file)
    change(file)  # type: ignore[operator]
    assert not is_verified(file, CLAIM)


def test_a_change_and_the_former_file_again_is_checked_again(file: Path) -> None:
    """The content is the same, but only reading it can show that."""
    check(file)
    change_in_place(file)
    file.write_bytes(bytes(LEAST_BYTES))
    assert not is_verified(file, CLAIM)


def test_a_file_that_was_changed_a_moment_ago_is_not_remembered(file: Path, cache: Path) -> None:
    """A further change in the same tick of the clock could not be noticed."""
    change_in_place(file)
    check(file)
    assert not is_verified(file, CLAIM)
    settle(file)
    check(file)
    assert is_verified(file, CLAIM)


@pytest.mark.parametrize("ahead_s", [0, 1, 3600])
def test_times_in_whole_seconds_and_in_the_future_are_not_settled(file: Path, ahead_s: int) -> None:
    now = time.time_ns()
    second = now // 10**9 * 10**9
    state = FileState.of(file)
    coarse = FileState(**{**state.__dict__, "modified_ns": second, "changed_ns": second})
    assert not coarse.is_settled(second + 10**9 - 10**9 * ahead_s)
    assert coarse.is_settled(second + 3 * 10**9)


def test_a_file_that_changes_while_it_is_read_is_not_remembered(file: Path) -> None:
    with verifying(file, CLAIM):
        change_in_place(file)
    settle(file)
    assert not is_verified(file, CLAIM)


def test_a_check_that_fails_is_not_remembered(file: Path) -> None:
    with pytest.raises(ValueError, match="damaged"), verifying(file, CLAIM):
        raise ValueError("damaged")
    assert not is_verified(file, CLAIM)


def test_small_files_are_not_remembered(tmp_path: Path, cache: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(bytes(LEAST_BYTES - 1))
    settle(small)
    check(small)
    assert not is_verified(small, CLAIM)
    assert not cache.exists()


def test_a_missing_file_is_not_known(tmp_path: Path) -> None:
    assert not is_verified(tmp_path / "missing", CLAIM)
    with verifying(tmp_path / "missing", CLAIM):
        pass


def test_two_names_of_a_file_are_one(file: Path, tmp_path: Path) -> None:
    check(file)
    (tmp_path / "link").symlink_to(file)
    assert is_verified(tmp_path / "link", CLAIM)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[" * 100_000, b"\xff\xfe", b"\0" * 100, b"x" * (1 << 20), None],
    ids=["empty", "cut", "null", "deep", "not UTF-8", "zeros", "large", "a folder"],
)
def test_a_damaged_record_counts_as_none(file: Path, cache: Path, content: bytes | None) -> None:
    check(file)
    (record,) = cache.iterdir()
    if content is None:
        record.unlink()
        record.mkdir()
    else:
        record.write_bytes(content)
    assert not is_verified(file, CLAIM)
    check(file)
    assert is_verified(file, CLAIM) == (content is not None)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    "key", ["edgedec", "format", "claim", "path", "size", "modified_ns", "changed_ns", "inode", "device"]
)
def test_each_member_of_a_record_counts(file: Path, cache: Path, key: str) -> None:
    """The version of edgedec is one of them, because another version may check more."""
    check(file)
    (record,) = cache.iterdir()
    content = json.loads(record.read_bytes())
    content[key] = f"{content[key]}0" if isinstance(content[key], str) else content[key] + 1
    record.write_text(json.dumps(content))
    assert not is_verified(file, CLAIM)


def test_another_version_checks_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(file)
    monkeypatch.setattr(verified, "__version__", "0.0.9")
    assert not is_verified(file, CLAIM)


@pytest.mark.parametrize("obstacle", ["a file in place of the folder", "a full disk"])
def test_records_that_cannot_be_written_are_done_without(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    if obstacle == "a full disk":

        def write_text(path: Path, *arguments: object, **options: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_text", write_text)
    else:
        cache.parent.mkdir(parents=True)
        cache.write_bytes(b"")
    check(file)
    assert not is_verified(file, CLAIM)
    assert not cache.is_dir() or list(cache.iterdir()) == []


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_done_without(file: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o500)
    check(file)
    assert not is_verified(file, CLAIM)


@pytest.mark.thorough
def test_the_oldest_records_go(tmp_path: Path, cache: Path, file: Path) -> None:
    cache.mkdir(parents=True)
    for number in range(MOST_RECORDS + 5):
        (cache / f"{number}.json").write_text("{}")
        os.utime(cache / f"{number}.json", ns=(number, number))
    check(file)
    assert len(list(cache.iterdir())) == MOST_RECORDS
    assert is_verified(file, CLAIM)
    assert not (cache / "5.json").exists()


@pytest.mark.thorough
def test_many_threads_at_once_leave_whole_records(file: Path, cache: Path) -> None:
    threads = [threading.Thread(target=check, args=(file,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert is_verified(file, CLAIM)
    assert [path.suffix for path in cache.iterdir()] == [".json"]
