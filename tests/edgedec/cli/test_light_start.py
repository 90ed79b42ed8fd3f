"""Check that a plain text loads no module and no library that it does not need: each would be a part of every process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgedec import demo
from edgedec.runtime.kernels.sessions.operator import usable

# Packages that other commands need, and modules of Python that bring a library or many objects with them.
HEAVY = frozenset(
    [
        *("onnx", "onnxruntime", "google", "flatbuffers", "safetensors", "jinja2", "markupsafe", "huggingface_hub"),
        *("rich", "pygments", "markdown_it", "pydantic", "yaml", "click", "requests", "httpx", "httpx2"),
        *("fastapi", "starlette", "uvicorn", "llguidance", "amaranth", "torch", "transformers", "wgpu", "gguf"),
        *("asyncio", "concurrent", "email", "http", "multiprocessing", "sqlite3", "ssl", "unittest", "xml"),
        *("_hashlib", "_ssl", "hashlib", "hmac", "secrets", "random", "tempfile", "decimal", "fractions", "statistics"),
    ]
)
HEAVY_PARTS = frozenset(f"numpy.{name}" for name in ("random", "fft", "ma", "polynomial", "testing", "f2py"))
LIBRARIES = ("libcrypto", "libssl", "libonnxruntime", "onnxruntime_pybind", "onnx_cpp2py", "libsqlite3")

SCRIPT = """
import sys
sys.argv = ["edgedec", "generate", "-m", "demo", "-p", "Once upon a time", "-n", "4", "--temp", "0"]
before = {name.partition(".")[0] for name in sys.modules}
from edgedec.cli.app import main
try:
    main()
finally:
    print()
    print("MODULES", *(name for name in sys.modules if name.partition(".")[0] not in before))
    print("FILES", *{line.split()[-1].rpartition("/")[2] for line in open("/proc/self/maps") if "/" in line})
"""


@pytest.fixture(scope="module")
def loaded() -> tuple[list[str], list[str]]:
    """Return the modules that a plain text imports, and the files that it maps, of a start that finds the bundle made."""
    if usable() is None:
        pytest.skip("without the kernels ONNX Runtime runs the model")
    demo.bundle_path()
    for _ in range(2):  # the first start converts the weights for the kernels
        process = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
    assert process.stdout.startswith(", there was a\n")
    modules, files = (line.split()[1:] for line in process.stdout.splitlines()[-2:])
    return modules, files


def test_a_text_imports_what_it_needs(loaded: tuple[list[str], list[str]]) -> None:
    modules, _ = loaded
    assert "edgedec.runtime.session.session" in modules
    assert sorted({name.partition(".")[0] for name in modules} & HEAVY) == []
    parts = {".".join(name.split(".")[:2]) for name in modules}
    assert sorted(parts & HEAVY_PARTS) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_a_text_maps_no_library_that_it_does_not_need(loaded: tuple[list[str], list[str]]) -> None:
    _, files = loaded
    assert any("tokenizers" in name for name in files)
    assert [name for name in files if name.startswith(LIBRARIES)] == []
