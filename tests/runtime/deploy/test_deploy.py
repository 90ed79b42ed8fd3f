"""Test deployment to a board that is a folder here: what arrives, what is refused, and what broken runs leave."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import BundleError, DeviceError, EdgedecError, ToolError, UsageError
from edgedec.runtime.accelerator.board_bundle import BoardBundle, open_board_bundle
from edgedec.runtime.deploy.board_checks import BoardCheck, parse_probe
from edgedec.runtime.deploy.deploy import Inspection, SshHost, commands, copy, folder_name, inspect_board
from tests.runtime.accelerator.support import make_board_bundle
from tests.runtime.deploy.support.fake_ssh import FakeBoard, fake_board

HOST = SshHost(address="xilinx@board")
PLACE = "models/it's a story"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> make_board_bundle.Parts:
    return make_board_bundle.make(tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def bundle(parts: make_board_bundle.Parts, tmp_path_factory: pytest.TempPathFactory) -> BoardBundle:
    return open_board_bundle(parts.write(tmp_path_factory.mktemp("bundles") / "it's a story.board"))


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> BoardBundle:
    folder = tmp_path_factory.mktemp("newer")
    return open_board_bundle(make_board_bundle.make(folder, seed=1).write(folder / "b"))


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBoard:
    return fake_board(tmp_path / "board", monkeypatch)


def by_name(inspection: Inspection) -> dict[str, BoardCheck]:
    return {check.name: check for check in inspection.checks}


def checks(bundle: BoardBundle, folder: str = PLACE) -> dict[str, BoardCheck]:
    return by_name(inspect_board(bundle, HOST, folder))


def names(bundle: BoardBundle, place: str = PLACE) -> list[str]:
    return sorted(f"{place}/{name}" for name in ("board.json", *bundle.files))


# Successful runs.


@pytest.mark.thorough
def test_a_bundle_is_copied(bundle: BoardBundle, board: FakeBoard) -> None:
    inspection = inspect_board(bundle, HOST, PLACE)
    assert (inspection.failed, inspection.state) == ((), "absent")
    assert [check.status for check in inspection.checks] == ["ok"] * 9, inspection.checks
    assert by_name(inspection)["pynq"].detail == "3.0.1"
    assert by_name(inspection)["board"].detail == "ZynqMP KV260 revB"
    assert board.files == []  # the inspection writes nothing
    steps: list[tuple[str, int, int]] = []
    copy(bundle, HOST, PLACE, progress=lambda *step: steps.append(step))
    assert board.files == names(bundle)
    assert open_board_bundle(board.home / PLACE).sha256 == bundle.sha256
    assert [step[1] for step in steps] == sorted(step[1] for step in steps)
    assert steps[-1][1] == steps[-1][2]
    assert inspect_board(bundle, HOST, PLACE).state == "same"
    assert len(board.calls) == 3


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("place", ["/abs", "$(touch x)`y` ; '", "-rf", 'back\\slash "é" * ?'])
def test_special_characters_of_paths_are_kept(bundle: BoardBundle, board: FakeBoard, place: str) -> None:
    absolute = place.startswith("/")
    folder = folder_name(str(board.home / place[1:]) if absolute else f"~/{place}", bundle)
    assert inspect_board(bundle, HOST, folder).failed == ()
    copy(bundle, HOST, folder)
    assert board.files == names(bundle, place.strip("/"))
    assert inspect_board(bundle, HOST, folder).state == "same"


def test_port_and_key_are_passed_to_ssh(bundle: BoardBundle, board: FakeBoard, tmp_path: Path) -> None:
    key = tmp_path / "a key"
    key.write_text("secret")
    inspect_board(bundle, SshHost(address="board", port=2222, identity=key), PLACE)
    (call,) = board.calls
    assert call[call.index("-p") + 1] == "2222"
    assert call[call.index("-i") + 1] == str(key)
    assert call[call.index("--") + 1] == "board"


@pytest.mark.thorough
def test_another_bundle_is_replaced(bundle: BoardBundle, newer: BoardBundle, board: FakeBoard) -> None:
    copy(bundle, HOST, PLACE)
    assert inspect_board(newer, HOST, PLACE).state == "other"
    copy(newer, HOST, PLACE)
    assert open_board_bundle(board.home / PLACE).sha256 == newer.sha256
    assert board.files == names(newer)


def test_a_damaged_copy_is_replaced(bundle: BoardBundle, board: FakeBoard) -> None:
    copy(bundle, HOST, PLACE)
    (board.home / PLACE / "program/image.bin").write_bytes(b"worn out")
    assert inspect_board(bundle, HOST, PLACE).state == "other"
    copy(bundle, HOST, PLACE)
    assert open_board_bundle(board.home / PLACE).sha256 == bundle.sha256


def test_a_link_is_replaced_and_its_target_is_not(bundle: BoardBundle, newer: BoardBundle, board: FakeBoard) -> None:
    copy(bundle, HOST, "real")
    (board.home / "link").symlink_to("real")
    copy(newer, HOST, "link")
    assert open_board_bundle(board.home / "real").sha256 == bundle.sha256
    assert open_board_bundle(board.home / "link").sha256 == newer.sha256


def test_output_of_the_login_shell_is_ignored(bundle: BoardBundle, board: FakeBoard) -> None:
    board.connection("noisy")
    inspection = inspect_board(bundle, HOST, PLACE)
    assert (inspection.state, inspection.failed) == ("absent", ())


# Properties of the board.


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("model", "pynq_board", "status"),
    [
        ("ZynqMP KV260 revB", None, "ok"),
        ("xlnx,zynqmp", "KV260", "ok"),
        ("ZynqMP SMK-K26 Rev1/B/A", None, "note"),
        ("", "Unknown", "note"),
        ("ZynqMP KR260 revB", None, "failed"),
        ("Avnet Ultra96-V2 Rev1", None, "failed"),
        ("Xilinx Zynq", "Pynq-Z2", "failed"),
    ],
)
def test_the_name_of_the_board_is_checked(
    bundle: BoardBundle, board: FakeBoard, model: str, pynq_board: str | None, status: str
) -> None:
    board.says(model=model, pynq_board=pynq_board)
    check = checks(bundle)["board"]
    assert check.status == status
    assert (model or "nothing") in check.detail
    assert bool(check.fix) == (status != "ok")


def test_another_processor_is_refused(bundle: BoardBundle, board: FakeBoard) -> None:
    board.says(machine="armv7l")
    assert checks(bundle)["processor"].status == "failed"
    assert "armv7l, not aarch64" in checks(bundle)["processor"].detail


def test_pynq_4_is_refused_on_a_zynq_7000(parts: make_board_bundle.Parts, board: FakeBoard, tmp_path: Path) -> None:
    bundle = open_board_bundle(parts.write(tmp_path / "z2", board="pynq-z2"))
    board.says(model="Xilinx Zynq", pynq_board="Pynq-Z2", machine="armv7l")
    assert inspect_board(bundle, HOST, PLACE).failed == ()
    (board.root / "site" / "pynq.py").write_text('__version__ = "4.0.0"')
    check = checks(bundle)["pynq"]
    assert check.status == "failed"
    assert "below 4" in check.fix


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("source", "status", "detail"),
    [
        ('__version__ = "4.0.0"', "ok", "4.0.0"),
        ('__version__ = "2.7.0"', "failed", "2.7.0 does not fit"),
        ('__version__ = "5.0.0"', "failed", "5.0.0 does not fit"),
        ("", "note", "version unknown"),
        ("raise ImportError('libxrt.so\\nis not there')", "failed", "libxrt.so"),
        ("import sys; sys.exit(3)", "failed", "SystemExit"),
        (None, "failed", "No module named"),
    ],
)
def test_the_version_of_pynq_is_checked(
    bundle: BoardBundle, board: FakeBoard, source: str | None, status: str, detail: str
) -> None:
    (board.root / "site" / "pynq.py").unlink()
    if source is not None:
        (board.root / "site" / "pynq.py").write_text(source)
    check = checks(bundle)["pynq"]
    assert check.status == status
    assert detail in check.detail
    assert ("3.0.1 or newer, below 5" in check.fix) == (status != "ok")


def test_an_old_python_is_refused(bundle: BoardBundle, board: FakeBoard) -> None:
    board.python("echo 'edgedec-probe python 3.8'; echo 'edgedec-probe pynq 3.0.1'")
    by_check = checks(bundle)
    assert (by_check["python"].status, by_check["python"].detail) == ("failed", "3.8 is too old")
    board.python("echo 'edgedec-probe python 3.9'; echo 'edgedec-probe pynq 3.0.1'")
    assert checks(bundle)["python"].fix == "install an image of PYNQ with Python 3.10 or newer"
    board.python("echo 'edgedec-probe python 3.10'; echo 'edgedec-probe pynq 3.0.1'")
    assert checks(bundle)["python"].status == "ok"


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("source", "status", "detail"),
    [
        ('__version__ = "1.21.5"', "ok", "1.21.5"),
        ('__version__ = "1.21.2+board"', "ok", "1.21.2+board"),
        ('__version__ = "1.19.5"', "failed", "1.19.5 is too old for edgedec"),
        ('__version__ = "2.0.0"', "failed", "2.0.0 is too new for pynq"),
        ("", "note", "version unknown"),
        ("raise ImportError('libblas.so.3')", "failed", "libblas.so.3"),
        (None, "failed", "No module named"),
    ],
)
def test_the_version_of_numpy_is_checked(
    bundle: BoardBundle, board: FakeBoard, source: str | None, status: str, detail: str
) -> None:
    (board.root / "site" / "numpy.py").unlink()
    if source is not None:
        (board.root / "site" / "numpy.py").write_text(source)
    check = checks(bundle)["numpy"]
    assert check.status == status
    assert detail in check.detail
    assert ("numpy>=1.21.2,<2" in check.fix) == (status != "ok")


def test_an_edgedec_that_cannot_be_imported_is_refused(bundle: BoardBundle, board: FakeBoard) -> None:
    """Check that an installation that is broken fails, and that none at all does not: it can follow."""
    file = board.root / "site" / "edgedec.py"
    file.write_text("from typing import NoSuchName")
    check = checks(bundle)["edgedec"]
    assert check.status == "failed"
    assert "NoSuchName" in check.detail
    file.unlink()
    check = checks(bundle)["edgedec"]
    assert (check.status, check.detail) == ("note", "is not installed")
    assert "pip install '.[board]'" in check.fix


def test_a_board_without_its_registers_is_refused(bundle: BoardBundle, board: FakeBoard) -> None:
    (board.root / "dev" / "mem").unlink()
    check = checks(bundle)["registers"]
    assert (check.status, check.detail) == ("failed", "there is no /dev/mem")
    assert "CONFIG_DEVMEM" in check.fix


def test_a_board_without_python_is_refused(bundle: BoardBundle, board: FakeBoard) -> None:
    board.python("exit 127")
    by_check = checks(bundle)
    assert (by_check["python"].status, by_check["pynq"].status) == ("failed", "failed")


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("total", "free", "status", "fix"),
    [
        (1_024_000, 100_000, "ok", ""),
        (1_024_000, 16, "note", "end other programs that use contiguous memory"),
        (64, 64, "failed", "cma=128M"),
        (0, 0, "failed", "cma="),
    ],
)
def test_contiguous_memory_is_checked(
    bundle: BoardBundle, board: FakeBoard, total: int, free: int, status: str, fix: str
) -> None:
    board.memory(total, free)
    check = checks(bundle)["contiguous memory"]
    assert check.status == status
    assert fix in check.fix


def test_a_kernel_without_contiguous_memory_is_refused(bundle: BoardBundle, board: FakeBoard) -> None:
    (board.root / "proc/meminfo").write_text("MemTotal: 1 kB\n")
    assert "CONFIG_CMA" in checks(bundle)["contiguous memory"].fix


def test_a_full_disk_is_reported_before_copying(bundle: BoardBundle, board: FakeBoard) -> None:
    board.tool("df", "echo 'Filesystem 1024-blocks Used Available Capacity Mounted on'; echo '/dev/x 9 8 17 9% /'")
    check = checks(bundle)["folder"]
    assert check.status == "failed"
    assert "17.0 KiB free" in check.detail


def test_a_folder_that_is_no_board_bundle_is_kept(bundle: BoardBundle, board: FakeBoard) -> None:
    (board.home / "mine").mkdir()
    (board.home / "mine" / "letter").write_text("dear")
    inspection = inspect_board(bundle, HOST, "mine")
    assert (inspection.state, [check.name for check in inspection.failed]) == ("foreign", ["folder"])
    with pytest.raises(DeviceError, match=r"mine exists and has no board\.json; give another --to"):
        copy(bundle, HOST, "mine")
    assert board.files == ["mine/letter"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(bundle: BoardBundle, board: FakeBoard) -> None:
    board.home.chmod(0o555)
    assert "cannot be written" in checks(bundle)["folder"].detail


def test_a_board_without_linux_is_refused(parts: make_board_bundle.Parts, tmp_path: Path, board: FakeBoard) -> None:
    bundle = open_board_bundle(parts.write(tmp_path / "u", board="ulx3s-85f"))
    with pytest.raises(UsageError, match="runs no Linux to copy to"):
        inspect_board(bundle, HOST, PLACE)
    assert board.calls == []


def test_a_board_of_the_user_is_recognized_by_its_name(
    parts: make_board_bundle.Parts, tmp_path: Path, board: FakeBoard
) -> None:
    bundle = open_board_bundle(parts.write(tmp_path / "own", board="my-board"))
    assert checks(bundle)["board"].status == "failed"  # the board says that it is a KV260
    board.says(model="Mine, rev 2")
    assert checks(bundle)["board"].status == "note"
    board.says(model="My Board rev 2")
    assert inspect_board(bundle, HOST, PLACE).failed == ()


# Failures.


def test_a_missing_ssh_is_named(bundle: BoardBundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for run in (inspect_board, copy):
        with pytest.raises(ToolError, match="openssh-client"):
            run(bundle, HOST, PLACE)


def test_an_unreachable_board_is_an_error(bundle: BoardBundle, board: FakeBoard) -> None:
    board.connection("unreachable")
    with pytest.raises(DeviceError, match="cannot be reached by ssh: ssh: connect to host board port 22: No route"):
        inspect_board(bundle, HOST, PLACE)
    with pytest.raises(DeviceError, match="the connection broke"):
        copy(bundle, HOST, PLACE)


def test_an_account_without_a_shell_is_an_error(bundle: BoardBundle, board: FakeBoard) -> None:
    board.tool("sh", "echo 'This account is not available.' >&2; exit 1")
    with pytest.raises(DeviceError, match=r"cannot run the check: This account is not available\."):
        inspect_board(bundle, HOST, PLACE)


def test_a_board_that_never_answers_is_an_error(
    bundle: BoardBundle, board: FakeBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedec.runtime.deploy.deploy._PROBE_LIMIT_S", 0.2)
    board.python("exec sleep 2")
    with pytest.raises(DeviceError, match="did not answer"):
        inspect_board(bundle, HOST, PLACE)


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.999])
def test_a_broken_connection_keeps_the_old_bundle(
    bundle: BoardBundle, newer: BoardBundle, board: FakeBoard, part: float, exists: bool
) -> None:
    if exists:
        copy(bundle, HOST, PLACE)
    before = board.files
    size = sum((newer.path / name).stat().st_size for name in ("board.json", *newer.files))
    board.connection(f"drop:{int(part * size)}")
    with pytest.raises(DeviceError, match="the connection broke: client_loop"):
        copy(newer, HOST, PLACE)
    assert board.files == before
    assert not list(board.home.rglob("*.part-*"))
    if exists:
        open_board_bundle(board.home / PLACE)


@pytest.mark.parametrize("exists", [False, True])
def test_a_bundle_that_arrives_damaged_is_refused(
    bundle: BoardBundle, newer: BoardBundle, board: FakeBoard, exists: bool
) -> None:
    if exists:
        copy(bundle, HOST, PLACE)
    before = board.files
    board.connection("flip:9000")  # a byte in the bitstream, after board.json and two headers
    with pytest.raises(EdgedecError, match=r"accelerator\.bit was damaged on the way; nothing was changed"):
        copy(newer, HOST, PLACE)
    assert board.files == before


def test_a_disk_that_fills_up_is_an_error(bundle: BoardBundle, board: FakeBoard) -> None:
    board.tool("tar", "echo 'tar: image.bin: Cannot write: No space left on device' >&2; exit 2")
    with pytest.raises(EdgedecError, match="disk is full; nothing was changed"):
        copy(bundle, HOST, PLACE)
    assert board.files == []


def test_another_failure_passes_the_words_of_the_board_on(bundle: BoardBundle, board: FakeBoard) -> None:
    board.tool("tar", "cat > /dev/null; printf 'tar: \\033[31mbad\\n' >&2; exit 2")
    with pytest.raises(DeviceError, match=r"tar: \[31mbad; nothing was changed"):
        copy(bundle, HOST, PLACE)


def test_an_interruption_leaves_nothing(bundle: BoardBundle, board: FakeBoard) -> None:
    def interrupt(label: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(bundle, HOST, PLACE, progress=interrupt)
    until = time.monotonic() + 60  # the board's shell continues by itself, and cleans up
    while list(board.home.rglob("*.part-*")) and time.monotonic() < until:
        time.sleep(0.02)
    assert board.files == []
    assert not list(board.home.rglob("*.part-*"))


def test_a_file_that_shrinks_during_the_copy_is_an_error(bundle: BoardBundle, board: FakeBoard, tmp_path: Path) -> None:
    mine = open_board_bundle(Path(shutil.copytree(bundle.path, tmp_path / "mine")))

    def shorten(label: str, done: int, total: int) -> None:
        if label == "accelerator.hwh":
            (mine.path / label).write_bytes(b"")

    with pytest.raises(BundleError, match=r"accelerator\.hwh: became shorter"):
        copy(mine, HOST, PLACE, progress=shorten)


def test_leftovers_of_a_killed_run_are_removed(bundle: BoardBundle, newer: BoardBundle, board: FakeBoard) -> None:
    copy(bundle, HOST, "b")
    shutil.copytree(board.home / "b", board.home / "b.old-4194306")
    others = ["b.old-4194307", "b.old-mine", f"b.part-{os.getpid()}", "b.part-mine", "b.partner"]
    for name in ("b.part-4194305", *others):
        (board.home / name).mkdir()
        (board.home / name / "x").write_text(name)
    copy(newer, HOST, "b")
    assert sorted(entry.name for entry in board.home.iterdir()) == ["b", *others]
    assert open_board_bundle(board.home / "b").sha256 == newer.sha256


def test_a_run_killed_between_two_renames_is_repaired(
    bundle: BoardBundle, newer: BoardBundle, board: FakeBoard
) -> None:
    copy(bundle, HOST, "b")
    (board.home / "b").rename(board.home / "b.old-4194306")
    board.connection("drop:100")
    with pytest.raises(DeviceError):
        copy(newer, HOST, "b")
    assert open_board_bundle(board.home / "b").sha256 == bundle.sha256  # restored by the run that failed
    assert [entry.name for entry in board.home.iterdir()] == ["b"]


def test_a_failed_rename_keeps_the_old_bundle(bundle: BoardBundle, newer: BoardBundle, board: FakeBoard) -> None:
    copy(bundle, HOST, "b")
    board.tool("mv", 'case $3 in *.part-*) echo "mv: Input/output error" >&2; exit 1 ;; esac; exec /bin/mv "$@"')
    with pytest.raises(DeviceError, match="Input/output error"):
        copy(newer, HOST, "b")
    assert open_board_bundle(board.home / "b").sha256 == bundle.sha256
    assert [entry.name for entry in board.home.iterdir()] == ["b"]


# Arguments.


@pytest.mark.parametrize(
    "address",
    ["", "-oProxyCommand=touch x", "a b", "user@", "@host", "user@-host", "a@b@c", "x\ny", "\x1b[2J", "board/models"],
)
def test_an_invalid_host_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"--host must be \[user@\]host"):
        SshHost(address=address)


def test_a_host_with_more_than_a_host() -> None:
    for address in ("board:22", "me@board:models", "ssh://board"):
        with pytest.raises(UsageError, match=r"; a port goes to --port, and a folder to --to$"):
            SshHost(address=address)


@pytest.mark.parametrize("address", ["192.168.2.99", "xilinx@pynq", "fe80::1%eth0", "me@fe80::1"])
def test_hosts_are_passed_to_ssh(address: str) -> None:
    assert SshHost(address=address).command("true")[-2] == address


def test_an_invalid_port_or_key_is_refused(tmp_path: Path) -> None:
    for port in (0, 65536, -1):
        with pytest.raises(UsageError, match="--port"):
            SshHost(address="b", port=port)
    for path, reason in ((tmp_path / "none", "there is no such file"), (tmp_path, "is not a file")):
        with pytest.raises(UsageError, match=f"--identity {path}: {reason}; give the file of a private key"):
            SshHost(address="b", identity=path)


@pytest.mark.parametrize("text", ["", "/", "~", "~/", ".", "a/..", "~root/x", "a\nb"])
def test_an_invalid_folder_is_refused(bundle: BoardBundle, text: str) -> None:
    with pytest.raises(UsageError, match="--to must be a folder"):
        folder_name(text, bundle)


def test_folders_are_normalized(bundle: BoardBundle) -> None:
    assert folder_name(None, bundle) == "it's a story.board"
    assert folder_name("~/a//b/", bundle) == "a/b"
    assert folder_name("-a", bundle) == "./-a"
    assert folder_name(None, replace(bundle, path=Path.cwd() / "x" / "..")) == Path.cwd().name


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1))
def test_any_argument_reaches_the_script_unchanged(text: str) -> None:
    command = SshHost(address="b").command('printf %s "$1"', text)[-1]
    assert shlex.split(command)[-1] == text
    process = subprocess.run(["sh", "-c", command], capture_output=True, check=True)
    assert process.stdout == text.encode()


@given(st.text())
def test_noise_is_never_an_answer(text: str) -> None:
    assert "state" not in parse_probe(text.replace("edgedec-probe", ""))


def test_the_listed_commands_are_those_that_run(bundle: BoardBundle, board: FakeBoard) -> None:
    inspect_board(bundle, HOST, PLACE)
    copy(bundle, HOST, PLACE)
    assert [["ssh", *call] for call in board.calls] == [command for _, command in commands(bundle, HOST, PLACE)]
