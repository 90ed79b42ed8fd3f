"""Check that nothing leaves the machine: commands in an empty home write edgedec's own files and make no network
socket.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.support.bench_no_network import FORBIDDEN, SUPPORTED
from tests.test_layering import imported_names

FOLDERS = ("edgedec", "hw", "quantize", "runtime", "boards", "sim", "tests", "benchmarks")
SWITCH = "edgedec/host/ort.py"
# Commands run in an environment of their own, which inherits this process's variables.
_PEERS = {
    "benchmarks/peers/genai_writer.py": "onnxruntime_genai",
    "tests/quantize/exporters/test_onnx.py": "onnxruntime_genai",
}
_SCRIPT = re.compile(r"^\s*(?:import|from)\s+(onnxruntime(?:_genai)?)\b", re.M)

# Python modules that connect to the network if they are used
_CLIENTS = ("huggingface_hub", "requests", "urllib3", "httpx2", "httpx", "aiohttp", "urllib.request", "http.client")

needs_filter = pytest.mark.skipif(not SUPPORTED, reason="the filter is for Linux on x86-64 and AArch64")
# ONNX Runtime has telemetry on Linux since version 1.29.
has_telemetry = tuple(map(int, version("onnxruntime").split(".")[:2])) >= (1, 29) and sys.platform == "linux"
needs_telemetry = pytest.mark.skipif(not has_telemetry, reason="this ONNX Runtime has no telemetry to be seen")

Run = Callable[..., subprocess.CompletedProcess[str]]


# Imports of the sources.


def bypasses(root: Path) -> list[str]:
    """Return one sentence for each import of ONNX Runtime without the switch: statements, calls, and scripts within
    strings.
    """
    sentences = []
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        text = path.read_text("utf-8")
        if "onnxruntime" not in text:
            continue  # parsing every file takes seconds
        tree = ast.parse(text)
        lines = [(module.split(".")[0], line) for module, line in imported_names(tree, "x.y", False)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines += [(module, node.lineno) for module in _SCRIPT.findall(node.value)]
        for module, line in dict.fromkeys(lines):
            if module in ("onnxruntime", "onnxruntime_genai") and name != SWITCH and _PEERS.get(name) != module:
                sentences.append(f"{name}:{line} imports {module}; write: from edgedec.host.ort import onnxruntime")
    return sentences


def test_one_module_imports_onnx_runtime(project_root: Path) -> None:
    assert SWITCH in {path.relative_to(project_root).as_posix() for path in (project_root / "edgedec").rglob("*.py")}
    assert bypasses(project_root) == []


@pytest.mark.parametrize(
    "source",
    [
        "import onnx" + "runtime",
        "import onnx" + "runtime.capi as capi",
        "def f():\n    from onnx" + "runtime import InferenceSession",
        "import importlib\nimportlib.import_module('onnx" + "runtime')",
        "__import__('onnx" + "runtime')",
        "SCRIPT = '''\nimport sys\nimport onnx" + "runtime as ort\n'''",
        "import onnx" + "runtime_genai",
    ],
)
@pytest.mark.parametrize("file", ["edgedec/cli/x.py", "benchmarks/x.py", "tests/x.py", "runtime/targets/x.py"])
def test_a_planted_bypass_is_reported(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text("from edgedec.host.ort import onnxruntime as ort\n")
    assert bypasses(tmp_path) == []
    path.write_text(source)
    (sentence,) = bypasses(tmp_path)
    assert sentence.startswith(f"{file}:")


# Switch.


@pytest.fixture
def load_switch(project_root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ModuleType, list[str]]]:
    """Load the switch again, with a stand-in for ONNX Runtime that another module imported before."""

    def load(**variables: str) -> tuple[ModuleType, list[str]]:
        calls: list[str] = []
        stand_in = SimpleNamespace(disable_telemetry_events=lambda: calls.append("disabled"))
        monkeypatch.setitem(sys.modules, "onnxruntime", stand_in)
        for name in ("ORT_DISABLE_TELEMETRY", "ORT_GENAI_TELEMETRY_DISABLED", "EDGEDEC_ORT_TELEMETRY"):
            monkeypatch.setenv(name, "")  # so that the earlier value returns after the test
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        spec = importlib.util.spec_from_file_location("switch", project_root / SWITCH)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, calls

    return load


@pytest.mark.parametrize(
    "variables", [{}, {"ORT_DISABLE_TELEMETRY": "0"}, {"EDGEDEC_ORT_TELEMETRY": "0"}, {"EDGEDEC_ORT_TELEMETRY": ""}]
)
def test_telemetry_is_off(
    load_switch: Callable[..., tuple[ModuleType, list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    variables: Mapping[str, str],
) -> None:
    module, calls = load_switch(**variables)
    assert environment("ORT_DISABLE_TELEMETRY", "ORT_GENAI_TELEMETRY_DISABLED") == ["1", "1"]
    assert calls == ["disabled"], "for a program that imported ONNX Runtime first"
    assert not module.ALLOWED


def test_telemetry_can_be_allowed_by_name(load_switch: Callable[..., tuple[ModuleType, list[str]]]) -> None:
    module, calls = load_switch(EDGEDEC_ORT_TELEMETRY="1")
    assert environment("ORT_DISABLE_TELEMETRY", "ORT_GENAI_TELEMETRY_DISABLED") == [None, None]
    assert calls == []
    assert module.ALLOWED
    load_switch(EDGEDEC_ORT_TELEMETRY="1", ORT_DISABLE_TELEMETRY="1")
    assert environment("ORT_DISABLE_TELEMETRY") == ["1"], "the user's own word against it stays"


def environment(*names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names]


# Files and sockets of commands.


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a home, a folder for temporary files and a working folder, all empty."""
    folder = tmp_path_factory.mktemp("privacy")
    for name in ("home", "tmp", "work"):
        (folder / name).mkdir()
    return folder


def run_in(
    folder: Path, root: Path, *command: str, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command under the filter, with nothing in its environment that would keep ONNX Runtime quiet, such as CI."""
    environment = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "PATH": "/usr/bin:/bin", **variables}
    words = [sys.executable, str(root / "tests" / "support" / "bench_no_network.py"), *command]
    return subprocess.run(
        words, cwd=folder / "work", env=environment, input=stdin, capture_output=True, text=True, check=False
    )


def foreign_files(folder: Path) -> list[str]:
    """Return files in the home and the temporary folder that are not edgedec's."""
    paths = (path for top in ("home", "tmp") for path in (folder / top).rglob("*") if not path.is_dir())
    names = (path.relative_to(folder).as_posix() for path in paths)
    return sorted(name for name in names if not name.startswith("home/.cache/edgedec/"))


@pytest.fixture
def run(home: Path, project_root: Path) -> Run:
    def run(*words: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        return run_in(home, project_root, sys.executable, *words, stdin=stdin, **variables)

    return run


_COMMANDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "generate": (("-m", "edgedec", "generate", "-m", "demo", "-p", "Once", "-n", "8"), ""),
    "chat": (("-m", "edgedec", "chat", "-m", "demo", "-n", "8"), "hello\n"),
    "quantize": (
        (
            "-m",
            "edgedec",
            "quantize",
            "CHECKPOINT",
            "--method",
            "int8",
            "--workers",
            "2",
            "--eval-text",
            "text",
            "-o",
            "q",
        ),
        "",
    ),
    "eval": (("-m", "edgedec", "eval", "-m", "demo", "--text", "text"), ""),
    "python": (("-c", "from edgedec.runtime.session.session import Session; import edgedec.runtime.targets.onnx"), ""),
}


@pytest.mark.thorough(sample=1)
@needs_filter
@pytest.mark.parametrize("name", _COMMANDS)
def test_a_command_leaves_only_its_files_and_opens_no_socket(
    home: Path, run: Run, project_root: Path, name: str
) -> None:
    words, stdin = _COMMANDS[name]
    (home / "work" / "text").write_text("Once upon a time, there was a little girl.\n")
    checkpoint = str(project_root / "edgedec" / "demo" / "target")
    process = run(
        *(checkpoint if word == "CHECKPOINT" else word for word in words), stdin=stdin, ORT_DISABLE_TELEMETRY="0"
    )
    assert process.returncode == 0, process.stderr
    assert foreign_files(home) == []


@needs_filter
@pytest.mark.parametrize(
    "script",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9), timeout=1)",
        "import socket; socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
        "import ctypes; ctypes.CDLL(None).socket(2, 1, 0)",
        "import threading, socket; t = threading.Thread(target=socket.socket); t.start(); t.join()",
        "import subprocess, sys\n"
        "sys.exit(subprocess.run([sys.executable, '-c', 'import socket; socket.socket()']).returncode)",
    ],
)
def test_a_planted_socket_is_detected(run: Run, script: str) -> None:
    assert run("-c", script).returncode in (FORBIDDEN, 256 + FORBIDDEN)


@needs_filter
def test_a_planted_socket_of_a_worker_is_detected(run: Run) -> None:
    script = (
        "import socket\n"
        "from edgedec.workers import open_pool\n"
        "with open_pool('local', workers=2) as pool:\n"
        "    list(pool.map(socket.socket, [socket.AF_INET]))"
    )
    process = run("-c", script)
    assert process.returncode == 1
    assert "was killed by SIGSYS" in process.stderr


@needs_filter
def test_a_socket_of_the_machine_itself_is_allowed(run: Run) -> None:
    process = run("-c", "import socket; socket.socket(socket.AF_UNIX).close(); socket.socketpair()")
    assert process.returncode == 0, process.stderr


@needs_filter
@needs_telemetry
def test_files_of_onnx_runtime_are_detected(tmp_path: Path, project_root: Path) -> None:
    """Check that the files which the commands above do not write appear when the switch is bypassed, or turned."""
    for name, script, variables in (
        ("bypassed", "import onnx" + "runtime", {}),
        ("allowed", "import edgedec.host.ort", {"EDGEDEC_ORT_TELEMETRY": "1"}),
    ):
        for part in ("home", "tmp", "work"):
            (tmp_path / name / part).mkdir(parents=True)
        run_in(tmp_path / name, project_root, sys.executable, "-c", script, **variables)
        assert any("onnxruntime" in file for file in foreign_files(tmp_path / name)), name


def test_no_client_of_the_network_is_loaded(run: Run) -> None:
    script = (
        "import sys, edgedec.cli.app, edgedec.runtime.session.session\n"
        "import edgedec.runtime.targets.onnx, edgedec.quantize.pipeline\n"
        f"print([name for name in {_CLIENTS!r} if name in sys.modules])"
    )
    process = run("-c", script)
    assert (process.returncode, process.stdout) == (0, "[]\n"), process.stderr
