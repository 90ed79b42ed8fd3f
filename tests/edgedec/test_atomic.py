"""Stop writers at any point: a reader sees the old content, the new one, or none, and the next writer cleans up."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from edgedec.bundle import atomic
from edgedec.bundle.atomic import check_folder, is_free, new_file, new_folder
from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.errors import EdgedecError, UsageError
from edgedec.schemes import FloatScheme
from tests.support import disk
from tests.support.make_tiny import write_bundle

OWNED = "manifest.json"
NAMES = ("manifest.json", "weights.bin", "a")


@pytest.fixture(autouse=True)
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the writers wait for the disk, as in no other test."""
    monkeypatch.setattr(os, "fsync", disk.fsync)


def write(path: Path, text: str) -> None:
    """Write a folder of three files with the same text."""
    with new_folder(path, OWNED) as folder:
        for name in NAMES:
            (folder / name).write_text(text)


def read(path: Path) -> str:
    """Return the text of the folder's files, which must be the same in all."""
    assert sorted(os.listdir(path)) == sorted(NAMES)
    (text,) = {(path / name).read_text() for name in NAMES}
    return text


# --- without accidents ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["model", "my model (1)", "bündel 模型", ".hidden", "a.b.c", "-m", "x" * 180, "new\nline"]
)
def test_a_folder_appears_whole_and_is_replaced_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with new_folder(path, OWNED) as folder:
        assert not path.exists()
        assert folder.parent == tmp_path
        for file in NAMES:
            (folder / file).write_text("old")
    assert read(path) == "old"
    with new_folder(path, OWNED) as folder:
        for file in NAMES:
            (folder / file).write_text("new")
        assert read(path) == "old"
    assert read(path) == "new"
    assert os.listdir(tmp_path) == [name]


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("model"), "one")
    write(Path("./x/../model"), "two")
    assert read(tmp_path / "model") == "two"
    with new_file(Path("table.json")) as file:
        file.write_text("three")
    assert (tmp_path / "table.json").read_text() == "three"


def test_the_folder_may_change_while_the_body_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a relative name is that of the moment at which writing began."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with new_folder(Path("model"), OWNED) as folder:
        monkeypatch.chdir(tmp_path / "elsewhere")
        for name in NAMES:
            (folder / name).write_text("here")
    assert read(tmp_path / "model") == "here"


LINKS: dict[str, Callable[[Path], object]] = {
    "a folder of this kind": lambda folder: write(folder, "old"),
    "an empty folder": lambda folder: folder.mkdir(),
    "nothing yet": lambda folder: None,
}


@pytest.mark.parametrize("target", LINKS)
@pytest.mark.parametrize("absolute", [False, True])
def test_a_link_stays_a_link_and_its_target_is_written(tmp_path: Path, target: str, absolute: bool) -> None:
    disk = tmp_path / "a disk"
    disk.mkdir()
    LINKS[target](disk / "target")
    (tmp_path / "middle").symlink_to(disk / "target" if absolute else "a disk/target")
    (tmp_path / "link").symlink_to("middle")
    for text in ("new", "newer"):
        with new_folder(tmp_path / "link", OWNED) as folder:
            assert folder.parent == disk, "a rename would otherwise cross file systems"
            for name in NAMES:
                (folder / name).write_text(text)
        assert read(tmp_path / "link") == read(disk / "target") == text
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "middle").is_symlink()
    assert not (disk / "target").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["a disk", "link", "middle"]
    assert os.listdir(disk) == ["target"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_to_a_file_stays_a_link(tmp_path: Path, exists: bool) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if exists:
        (disk / "table.json").write_text("old")
    (tmp_path / "link").symlink_to("disk/table.json")
    with new_file(tmp_path / "link") as file:
        assert file.parent == disk
        file.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (disk / "table.json").read_text() == "new"

    def fail() -> None:
        with new_file(tmp_path / "link") as file:
            file.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "link").read_text() == "new"
    assert os.listdir(disk) == ["table.json"]


def test_a_file_may_replace_a_link(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("old")
    (tmp_path / "link").symlink_to("theirs")
    with new_file(tmp_path / "link", follow=False) as file:
        file.write_text("new")
    assert not (tmp_path / "link").is_symlink()
    assert [(tmp_path / name).read_text() for name in ("theirs", "link")] == ["old", "new"]


@pytest.mark.parametrize("writer", ["folder", "file"])
@pytest.mark.parametrize(
    ("leads_to", "message"),
    [
        ("link", "it is a link that leads back to itself; choose another name or remove it"),
        ("other", "it is a link that leads back to itself"),
        (
            "no disk/model",
            r"it is a link to .*no disk/model, and there is no folder .*no disk; make that folder, mount",
        ),
        ("file/model", "Not a directory; choose another name"),
    ],
)
def test_a_link_that_cannot_be_written_through_is_refused(
    tmp_path: Path, writer: str, leads_to: str, message: str
) -> None:
    (tmp_path / "link").symlink_to(leads_to)
    (tmp_path / "other").symlink_to("link")
    (tmp_path / "file").write_text("x")

    def begin() -> None:
        with new_folder(tmp_path / "link", OWNED) if writer == "folder" else new_file(tmp_path / "link"):
            pytest.fail("it began to write")

    with pytest.raises(UsageError, match=rf"cannot write .*link: {message}"):
        begin()
    assert os.readlink(tmp_path / "link") == leads_to
    assert sorted(os.listdir(tmp_path)) == ["file", "link", "other"]


def test_a_link_to_something_else_is_refused_like_its_target(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("precious")
    (tmp_path / "link").symlink_to("home")
    with pytest.raises(UsageError, match=r"cannot write .*link \(a link to .*home\): it exists and holds no manifest"):
        write(tmp_path / "link", "new")
    assert os.listdir(tmp_path / "home") == ["thesis.txt"]


def test_an_empty_folder_is_filled_and_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir(mode=0o700)
    for text in ("new", "newer"):
        write(tmp_path / "model", text)
        assert read(tmp_path / "model") == text
        assert (tmp_path / "model").stat().st_mode & 0o777 == 0o700
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("exchange", [True, False])
def test_an_empty_folder_that_something_fills_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda left, right: False)
    (tmp_path / "model").mkdir()

    def disturbed() -> None:
        with new_folder(tmp_path / "model", OWNED) as folder:
            (folder / OWNED).write_text("new")
            (tmp_path / "model" / "thesis.txt").write_text("precious")

    with pytest.raises(UsageError, match=r"cannot write .*model: it exists and holds no manifest\.json"):
        disturbed()
    assert os.listdir(tmp_path) == ["model"]
    assert (tmp_path / "model" / "thesis.txt").read_text() == "precious"


def test_the_working_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check this because a shell in the working folder would then stand in a removed folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UsageError, match=r"it is the working folder, so it cannot be replaced; name a folder in it, such"
    ):
        write(Path("."), "new")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["/dev/null", "/dev/full"])
def test_a_device_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to(name)
    for path in (Path(name), tmp_path / "link"):
        with pytest.raises(UsageError, match="it is a device or a pipe; give the name of a file"), new_file(path):
            pytest.fail("it began to write")
    assert Path(name).is_char_device()


def test_a_folder_is_refused_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with (
        pytest.raises(UsageError, match=r"folder: it is a folder; give the name of a file, such as .*folder/new"),
        new_file(tmp_path / "folder"),
    ):
        pytest.fail("it began to write")


def test_a_folder_is_replaced_without_an_exchange_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate systems without renameat2, which take two steps."""
    monkeypatch.setattr(atomic, "_exchange", lambda left, right: False)
    write(tmp_path / "model", "old")
    write(tmp_path / "model", "new")
    assert read(tmp_path / "model") == "new"
    assert os.listdir(tmp_path) == ["model"]


def test_a_file_appears_whole_and_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a file.onnx"
    for text in ("old", "new"):
        with new_file(path) as file:
            file.write_text(text)
        assert path.read_text() == text
    assert os.listdir(tmp_path) == ["a file.onnx"]


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "file", "owned name is a folder"])
def test_something_else_is_not_overwritten(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "home"
    if kind == "file":
        path.write_text("precious")
    else:
        path.mkdir()
    if kind == "folder":
        (path / "thesis.txt").write_text("precious")
    if kind == "owned name is a folder":
        (path / OWNED).mkdir()

    def content() -> object:
        if path.is_dir():
            return sorted(entry.name for entry in path.iterdir())
        return path.read_text()

    before = content()
    with pytest.raises(UsageError, match=r"cannot write .*home: it exists and holds no manifest\.json; choose another"):
        write(path, "new")
    assert content() == before
    assert os.listdir(tmp_path) == ["home"]


def test_missing_parents_are_created(tmp_path: Path) -> None:
    write(tmp_path / "no" / "way" / "model", "new")
    with new_file(tmp_path / "some" / "table.json") as file:
        file.write_text("1")
    assert sorted(os.listdir(tmp_path)) == ["no", "some"]


def test_created_parents_are_removed_if_the_body_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_folder(tmp_path / "no" / "way" / "model", "manifest.json"):
        raise RuntimeError
    assert os.listdir(tmp_path) == []
    (tmp_path / "there").mkdir()
    with pytest.raises(RuntimeError), new_folder(tmp_path / "there" / "way" / "model", "manifest.json"):
        raise RuntimeError
    assert os.listdir(tmp_path) == ["there"]


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    message = (
        f"cannot write {tmp_path}/file/a/model: {tmp_path}/file is not a folder; choose another name, or remove it"
    )
    path = tmp_path / "file" / "a" / "model"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        write(path, "new")
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        check_folder(path, OWNED)
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"), new_file(path):
        pytest.fail("it went on")
    assert (tmp_path / "file").read_text() == "x"


def test_a_read_only_folder_is_seen_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_folder(tmp_path / "way" / "model", OWNED)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write anywhere
    with pytest.raises(UsageError, match=r"way/model: the folder .* is read-only; choose another one"):
        check_folder(tmp_path / "way" / "model", OWNED)


@pytest.mark.parametrize("writer", ["folder", "file"])
def test_a_source_that_cannot_be_read_is_named(tmp_path: Path, writer: str) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    source.mkdir()
    opened = new_folder(output, OWNED) if writer == "folder" else new_file(output)
    with pytest.raises(EdgedecError) as caught, opened:
        shutil.copy(source / "weights", tmp_path / "never")
    assert str(caught.value) == (
        f"{source}/weights: No such file or directory; {output} was not written, because its content needs that file"
    )
    assert os.listdir(tmp_path) == ["source"]


def test_a_failure_of_the_output_names_the_output(tmp_path: Path) -> None:
    output = tmp_path / "output"
    message = f"^cannot write {output}: No such file or directory$"
    with pytest.raises(EdgedecError, match=message), new_folder(output, OWNED) as folder:
        (folder / "missing" / "file").write_bytes(b"")
    with pytest.raises(EdgedecError, match=f"^cannot write {output}: the disk is full; "), new_folder(output, OWNED):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "source"))


def test_all_levels_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with new_folder(tmp_path / "model", OWNED) as folder:
        (folder / "a" / "b").mkdir(parents=True)
        (folder / "a" / "b" / "deep").write_text("x")
        (folder / OWNED).write_text("x")
        (folder / "link").symlink_to("nowhere")
        expected = {str(path) for path in folder.rglob("*") if not path.is_symlink()} | {str(folder)}
    assert expected <= synced


@pytest.mark.parametrize("length", [250, 300])  # too long with our mark, and too long by itself
def test_a_name_that_is_too_long_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(EdgedecError, match=r"cannot write .*File name too long"):
        write(tmp_path / ("x" * length), "new")
    assert os.listdir(tmp_path) == []


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EdgedecError, match=r"cannot write .*File name too long"):
        write(tmp_path / ("x" * 300) / "model", "new")
    assert os.listdir(tmp_path) == []


# --- the body fails ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("exists", [False, True], ids=["first", "again"])
def test_an_error_in_the_body_passes_through(tmp_path: Path, error: type[BaseException], exists: bool) -> None:
    if exists:
        write(tmp_path / "model", "old")

    def fail() -> None:
        with new_folder(tmp_path / "model", OWNED) as folder:
            (folder / OWNED).write_text("half")
            (folder / "deep").mkdir()
            (folder / "deep" / "file").write_text("half")
            raise error

    def fail_file() -> None:
        with new_file(tmp_path / "table.json") as file:
            file.write_text("half")
            raise error

    for attempt in (fail, fail_file):
        with pytest.raises(error):
            attempt()
    assert os.listdir(tmp_path) == (["model"] if exists else [])
    if exists:
        assert read(tmp_path / "model") == "old"


def test_a_body_that_writes_no_file_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(EdgedecError, match=r"cannot write .*table\.json: No such file"),
        new_file(tmp_path / "table.json"),
    ):
        pass
    assert os.listdir(tmp_path) == []


# --- a full disk ------------------------------------------------------------------------------------------------------

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")


@needs_full
@pytest.mark.parametrize("exists", [False, True], ids=["first", "again"])
def test_a_full_device_leaves_the_old_content(tmp_path: Path, exists: bool) -> None:
    if exists:
        write(tmp_path / "model", "old")

    def fail() -> None:
        with new_folder(tmp_path / "model", OWNED) as folder:
            (folder / "weights.bin").symlink_to("/dev/full")
            (folder / "weights.bin").write_text("more than fits")

    with pytest.raises(EdgedecError, match=r"cannot write .*model: the disk is full; free some space"):
        fail()
    assert os.listdir(tmp_path) == (["model"] if exists else [])
    assert not exists or read(tmp_path / "model") == "old"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 256 KiB."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def big(path: Path, floats: int) -> None:
    with BundleWriter.create(path) as writer:
        for i in range(8):
            part = {"values": np.full(floats // 8, i, np.float32)}
            writer.add(f"w{i}", FloatScheme(), (floats // 8,), part)


@pytest.mark.parametrize("floats", [1 << 20, 40_000], ids=["far too large", "a little too large"])
def test_a_full_disk_leaves_the_old_bundle(small_disk: Path, floats: int) -> None:
    """Write 40,000 floats, which fit alone, but not next to the old bundle."""
    write_bundle(small_disk / "model", "float")
    assert sum(file.stat().st_size for file in (small_disk / "model").iterdir()) > 100 << 10
    before = Bundle.open(small_disk / "model").sha256
    for name in ("model", "another"):
        with pytest.raises(
            EdgedecError, match=rf"cannot write .*{name}: the disk is full; free some space and run again"
        ):
            big(small_disk / name, floats)
        assert os.listdir(small_disk) == ["model"]
        assert Bundle.open(small_disk / "model").sha256 == before
    # With free space again, the same call succeeds.
    write_bundle(small_disk / "model", "native")
    assert Bundle.open(small_disk / "model").quantization == {"method": "native"}


def test_a_mount_point_is_not_replaced(small_disk: Path) -> None:
    with pytest.raises(
        UsageError, match=r"it is a mount point, so it cannot be replaced; name a folder in it, such as"
    ):
        write(small_disk, "new")
    write(small_disk / "model", "new")
    assert os.listdir(small_disk) == ["model"]


def test_a_folder_without_write_permission_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        parent = Path("/proc/self/fdinfo")  # not even root can create anything there
        if not parent.is_dir():
            pytest.skip("root may write everywhere here")
    else:
        parent = tmp_path
        parent.chmod(0o500)
    with pytest.raises(EdgedecError, match=r"cannot write .*model: "):
        write(parent / "model", "new")


# --- killed -----------------------------------------------------------------------------------------------------------

# program that writes generation after generation and says when one is complete
WRITER = """
import os, signal, sys
from pathlib import Path
from edgedec.bundle.atomic import new_folder

path, names, rounds, fatal = Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4])
steps = 0

def count(event, arguments):
    # Each of these is a moment before a step on the disk; renameat2 comes after the dlopen.
    global steps
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "ctypes.dlopen"):
        steps += 1
        if steps == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

print("ready", flush=True)
sys.addaudithook(count)
for generation in range(rounds):
    with new_folder(path, "manifest.json") as folder:
        for name in names:
            (folder / name).write_text(f"{os.getpid()} {generation}")
    if rounds > 1:
        print(generation, flush=True)
"""


def start(path: Path, *, rounds: int, fatal: int = 0) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), ",".join(NAMES), str(rounds), str(fatal)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@contextmanager
def killed_after(seconds: float, path: Path, *, generations: int = 0) -> Iterator[None]:
    """Kill a writer ``seconds`` after it has completed ``generations``."""
    process = start(path, rounds=1_000_000)
    assert process.stdout is not None
    for _ in range(generations):
        process.stdout.readline()
    time.sleep(seconds)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    yield


@pytest.mark.thorough
@pytest.mark.parametrize("exists", [False, True], ids=["first", "again"])
def test_a_writer_killed_before_any_of_its_steps_leaves_old_or_new_content(tmp_path: Path, exists: bool) -> None:
    """Send SIGKILL before every single step on the disk, until a run ends by itself."""
    outcomes = []
    for fatal in range(1, 200):
        parent = tmp_path / str(fatal)
        parent.mkdir()
        path = parent / "my bündel"
        if exists:
            write(path, "old")
        process = start(path, rounds=1, fatal=fatal)
        process.communicate()
        if exists or path.exists():
            text = read(path)
            outcomes.append("old" if text == "old" else "new")
            assert text in ("old", f"{process.pid} 0")
        else:
            outcomes.append("none")
        if process.returncode == 0:
            assert os.listdir(parent) == [path.name]
            break
        assert process.returncode == -signal.SIGKILL
        # The next writer is not disturbed, and cleans up.
        write(path, "next")
        assert read(path) == "next"
        assert os.listdir(parent) == [path.name]
    assert outcomes[-1] == "new"
    assert len(outcomes) > 10
    # The content changes at one moment, and never back.
    assert outcomes == sorted(outcomes, key=["none", "old", "new"].index)
    assert len(set(outcomes)) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", [6, pytest.param(150, marks=pytest.mark.nightly)], ids=["a few times", "many times"])
def test_a_writer_killed_at_random_moments_leaves_whole_content(tmp_path: Path, rounds: int) -> None:
    path, moments = tmp_path / "model", random.Random(0)
    write(path, "old")
    for number in range(rounds):
        # The first writer completes a generation, on a busy machine too.
        with killed_after(moments.uniform(0, 0.03), path, generations=int(number == 0)):
            read(path)
    assert read(path) != "old"
    write(path, "next")
    assert os.listdir(tmp_path) == ["model"]


BUNDLES = """
import sys
from pathlib import Path
from tests.support.make_tiny import write_bundle

print("ready", flush=True)
for seed in range(1_000_000):
    write_bundle(Path(sys.argv[1]), "planes2", seed=seed)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("exists", [False, True], ids=["first", "again"])
def test_a_killed_quantizer_leaves_a_sound_bundle_or_none(tmp_path: Path, project_root: Path, exists: bool) -> None:
    path, moments = tmp_path / "model", random.Random(1)
    if exists:
        write_bundle(path, "int8")
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", BUNDLES, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(project_root)},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0, 0.05))
        process.kill()
        process.communicate()
        if exists or path.exists():
            bundle = Bundle.open(path)
            assert all(bundle.weight(name) for name in bundle.tensors)
    write_bundle(path)
    assert os.listdir(tmp_path) == ["model"]


def test_leftovers_of_a_killed_writer_are_removed_and_nothing_else(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host, mark = os.uname().nodename, atomic._MARK
    leftovers = [f".model.{mark}-{host}-{dead.pid}-0123abcd", f".model.{mark}-{host}-{dead.pid}-0123abcd-old"]
    others = [
        f".model.{mark}-{host}-{os.getpid()}-0123abcd",  # a running writer
        f".model.{mark}-{host}-1-0123abcd",  # another process
        f".model.{mark}-elsewhere-{dead.pid}-0123abcd",  # on a shared disk its writer may be alive
        f".model2.{mark}-{host}-{dead.pid}-0123abcd",
        f"model.{mark}-{host}-{dead.pid}-0123abcd",
        f".model.{mark}-{host}-{dead.pid}-0123abcd.txt",
        f".model.{mark}-{host}--{dead.pid}-0123abcd",
        ".model",
    ]
    for name in leftovers + others:
        (tmp_path / name).mkdir()
        (tmp_path / name / OWNED).write_text("x")
    (tmp_path / f".model.{mark}-{host}-{dead.pid}-4567cdef").write_text("a file, of new_file")
    write(tmp_path / "model", "new")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "model"])


def test_a_listed_folder_is_closed(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    (tmp_path / "two").touch()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not is_free(tmp_path)
    assert [str(warning.message) for warning in caught] == []


# --- several at once --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_two_processes_at_once_leave_whole_content(tmp_path: Path) -> None:
    path = tmp_path / "model"
    writers = [start(path, rounds=40) for _ in range(2)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    assert read(path) in {f"{writer.pid} 39" for writer in writers}
    assert os.listdir(tmp_path) == ["model"]


def test_threads_at_once_leave_whole_content(tmp_path: Path) -> None:
    path, barrier, errors = tmp_path / "model", threading.Barrier(4), list[BaseException]()

    def work(name: str) -> None:
        try:
            for i in range(10):
                barrier.wait()
                write(path, f"{name} {i}")
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert read(path).endswith(" 9")
    assert os.listdir(tmp_path) == ["model"]


def test_a_folder_that_appears_meanwhile_is_replaced(tmp_path: Path) -> None:
    """Begin to write when there is no folder, and end when there is one."""
    path = tmp_path / "model"
    with new_folder(path, OWNED) as folder:
        for name in NAMES:
            (folder / name).write_text("slow")
        write(path, "fast")
        assert read(path) == "fast"
    assert read(path) == "slow"
    assert os.listdir(tmp_path) == ["model"]


# --- without renameat2 ------------------------------------------------------------------------------------------------


def test_a_failed_second_rename_puts_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    write(path, "old")
    monkeypatch.setattr("edgedec.bundle.atomic._exchange", lambda left, right: False)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self != path and target == path and not self.name.endswith("-old"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(EdgedecError, match="Input/output error"):
        write(path, "new")
    assert read(path) == "old"
    assert os.listdir(tmp_path) == ["model"]


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    write(tmp_path / "model", "old")
    mark = f".model.partial-{socket.gethostname()}-{dead.pid}-0badcafe"
    (tmp_path / "model").rename(tmp_path / f"{mark}-old")
    (tmp_path / mark).mkdir()
    with pytest.raises(RuntimeError), new_folder(tmp_path / "model", OWNED):
        raise RuntimeError  # the next writer first puts the old folder back, whatever it does then
    assert read(tmp_path / "model") == "old"
    assert os.listdir(tmp_path) == ["model"]
