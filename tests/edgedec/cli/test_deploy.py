"""Test ``edgedec deploy``: its output, its exit codes, and that a dry run changes nothing."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.edgedec.cli.conftest import Edgedec
from tests.runtime.accelerator.support import make_board_bundle
from tests.runtime.deploy.support.fake_ssh import FakeBoard, fake_board


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a board bundle under a path with spaces and a quote."""
    place = tmp_path_factory.mktemp("board's bundles")
    return make_board_bundle.make(place).write(place / "my story.board")


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBoard:
    return fake_board(tmp_path / "board", monkeypatch)


@pytest.mark.thorough
def test_a_second_deployment_sends_nothing(edgedec: Edgedec, folder: Path, board: FakeBoard) -> None:
    first = edgedec("deploy", folder, "--host", "xilinx@board")
    assert (first.code, first.stderr) == (0, "")
    assert "ok      pynq: 3.0.1\n" in first.stdout
    assert first.stdout.endswith(
        "xilinx@board:my story.board has the bundle now; run on the board, as root:\n"
        "  edgedec chat --device pynq -m 'my story.board'\n"
    )
    assert (board.home / "my story.board" / "board.json").is_file()
    assert len(board.calls) == 2
    again = edgedec("deploy", folder, "--host", "xilinx@board")
    assert (again.code, len(board.calls)) == (0, 3)
    assert "has the bundle already" in again.stdout


def test_json_is_complete(edgedec: Edgedec, folder: Path, board: FakeBoard) -> None:
    data: dict[str, Any] = edgedec("deploy", folder, "--host", "board", "--to", "~/a b/", "--json").json
    assert (data["host"], data["folder"], data["state"], data["copied"]) == ("board", "a b", "absent", True)
    assert {check["name"]: check["status"] for check in data["checks"]}["board"] == "ok"
    assert data["bytes"] == sum((folder / name).stat().st_size for name in data["files"])
    data = edgedec("deploy", folder, "--host", "board", "--to", "a b", "--json").json
    assert (data["state"], data["copied"]) == ("same", False)


def test_a_dry_run_changes_nothing(edgedec: Edgedec, folder: Path, board: FakeBoard) -> None:
    outcome = edgedec("deploy", folder, "--host", "board", "--port", 2222, "--dry-run")
    assert (outcome.code, board.calls, board.files) == (0, [], [])
    assert "for kv260, configuration" in outcome.stdout
    assert "  program/image.bin\n" in outcome.stdout
    data: dict[str, Any] = edgedec("deploy", folder, "--host", "board", "--port", 2222, "--dry-run", "--json").json
    assert (data["dry_run"], board.calls) == (True, [])
    for step in data["commands"]:
        assert f"# {step['what']}\n{shlex.join(step['command'])}\n" in outcome.stdout
    edgedec("deploy", folder, "--host", "board", "--port", 2222)
    assert [["ssh", *call] for call in board.calls] == [step["command"] for step in data["commands"]]


def test_a_dry_run_needs_no_ssh(
    edgedec: Edgedec, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert edgedec("deploy", folder, "--host", "board", "--dry-run").code == 0
    outcome = edgedec("deploy", folder, "--host", "board")
    assert outcome.code == 3
    assert "openssh-client" in outcome.stderr


def test_a_board_that_is_not_ready_is_refused(edgedec: Edgedec, folder: Path, board: FakeBoard) -> None:
    (board.root / "site" / "pynq.py").unlink()
    board.memory(0, 0)
    outcome = edgedec("deploy", folder, "--host", "board")
    assert (outcome.code, board.files) == (3, [])
    assert "board is not ready: pynq, contiguous memory; nothing was copied" in outcome.stderr
    assert "FAILED  pynq: " in outcome.stdout
    assert "cma=" in outcome.stdout
    data: dict[str, Any] = edgedec("deploy", folder, "--host", "board", "--json").json
    assert data["copied"] is False
    assert sum(check["status"] == "failed" for check in data["checks"]) == 2


@pytest.mark.parametrize(
    ("connection", "code", "message"),
    [
        ("unreachable", 3, "No route to host"),
        ("drop:500", 3, "connection broke"),
        ("flip:9000", 1, "was damaged on the way"),
    ],
)
def test_failures_have_a_code_and_a_message(
    edgedec: Edgedec, folder: Path, board: FakeBoard, connection: str, code: int, message: str
) -> None:
    board.connection(connection)
    outcome = edgedec("deploy", folder, "--host", "board")
    assert (outcome.code, board.files) == (code, [])
    assert outcome.stderr.startswith("edgedec: ")
    assert outcome.stderr.count("\n") == 1
    assert message in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "--host [USER@]HOST"),
        (("--host", "-oProxyCommand=x"), 2, "--host must be"),
        (("--host", "board", "--port", "0"), 2, "--port must be"),
        (("--host", "board", "--identity", "none"), 2, "there is no such file"),
        (("--host", "board", "--to", "/"), 2, "--to must be"),
    ],
)
def test_wrong_requests_are_refused(
    edgedec: Edgedec, folder: Path, board: FakeBoard, arguments: tuple[str, ...], code: int, message: str
) -> None:
    outcome = edgedec("deploy", folder, *arguments)
    assert (outcome.code, outcome.stdout, board.calls) == (code, "", [])
    assert message in outcome.stderr


def test_a_wrong_bundle_is_refused_before_a_connection(edgedec: Edgedec, bundle: Path, board: FakeBoard) -> None:
    outcome = edgedec("deploy", bundle, "--host", "board")
    assert (outcome.code, board.calls) == (1, [])
    assert "is a model's bundle, not a board bundle" in outcome.stderr
    assert edgedec("deploy", bundle / "none", "--host", "board").code == 2


def test_the_model_in_a_board_bundle_is_refused_on_a_cpu(edgedec: Edgedec, folder: Path) -> None:
    outcome = edgedec("generate", "-m", folder / "model", "-p", "w1", "-n", 1)
    assert outcome.code == 1
    assert (
        "is a board bundle's model, which has the embedding and no other weight; run the board bundle" in outcome.stderr
    )
    assert edgedec("inspect", folder / "model").code == 0
    outcome = edgedec("generate", "-m", folder, "-p", "w1", "-n", 1)
    assert outcome.code == 1
    assert "is a board bundle; run it on its board with --device pynq" in outcome.stderr


def build_folder(folder: Path, state: str) -> Path:
    """Write what ``edgedec build-bitstream`` leaves, as far as ``deploy`` reads it."""
    folder.mkdir(parents=True)
    (folder / "build.json").write_text("{}")
    (folder / "report.json").write_text(json.dumps({"state": state, "command": "cd . && vivado -mode batch"}))
    return folder


@pytest.mark.parametrize("name", ["", "accelerator.board"])
def test_a_build_without_a_bitstream_names_the_next_step(edgedec: Edgedec, tmp_path: Path, name: str) -> None:
    folder = build_folder(tmp_path / "a build", "written")
    outcome = edgedec("deploy", folder / name, "--host", "board")
    assert outcome.code == 1
    assert "has no bitstream yet" in outcome.stderr
    assert (
        f"with: cd '{folder}' && vivado -mode batch. Then run the same edgedec build-bitstream again" in outcome.stderr
    )
    assert str(folder / "accelerator.board") in outcome.stderr


def test_a_build_without_a_report_is_named_too(edgedec: Edgedec, tmp_path: Path) -> None:
    folder = build_folder(tmp_path / "build", "written")
    (folder / "report.json").write_text("[" * 100_000)
    assert "has no bitstream yet" in edgedec("deploy", folder, "--host", "board").stderr


def test_a_build_with_a_board_bundle_says_where_it_is(edgedec: Edgedec, tmp_path: Path, folder: Path) -> None:
    build = build_folder(tmp_path / "build", "built")
    assert "has a bitstream and no board bundle" in edgedec("deploy", build, "--host", "board").stderr
    shutil.copytree(folder, build / "accelerator.board")
    outcome = edgedec("deploy", build, "--host", "board")
    assert outcome.stderr.endswith(f"its board bundle is in it; name {build / 'accelerator.board'}\n")
