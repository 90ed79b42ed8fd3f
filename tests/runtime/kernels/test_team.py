"""Run the threads of fused nodes (``team.hpp``, ``thread_pool.hpp``) in programs of their own, also sanitized."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from edgedec.runtime.kernels.recipe import FLAGS, FOLDER, find_compiler


def build(program: Path, *options: str, driver: str = "team_driver.cpp") -> str:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = Path(__file__).with_name(driver)
    command = [*compiler, *FLAGS, "-Wall", "-Wextra", *options, f"-I{FOLDER}", str(source), "-o", str(program)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode and options:
        pytest.skip(f"the compiler lacks {options[0]}")
    assert (process.returncode, process.stderr) == (0, "")
    return str(program)


@pytest.mark.thorough
def test_a_leader_that_is_interrupted_between_its_stores_misleads_no_helper(tmp_path: Path) -> None:
    header, store = (FOLDER / "operators" / "team.hpp").read_text(), "ranges_[m].next.store(job"
    assert header.count(store) == 1
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "team.hpp").write_text(
        header.replace(store, f"for (volatile int w = 20000; w; w = w - 1) {{}}\n{store}")
    )
    program = build(tmp_path / "team", f"-I{tmp_path}")
    process = subprocess.run([program, "3", "600"], capture_output=True, text=True, check=False, timeout=120)
    assert (process.returncode, process.stdout, process.stderr) == (0, "0\n", "")


@pytest.mark.nightly
@pytest.mark.parametrize("helpers", [0, 1, 3])
@pytest.mark.parametrize("options", [(), ("-fsanitize=thread", "-g")], ids=["plain", "sanitized"])
def test_each_index_of_each_job_is_computed_once(options: tuple[str, ...], helpers: int, tmp_path: Path) -> None:
    program = build(tmp_path / "team", *options)
    process = subprocess.run([program, str(helpers), "400"], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (0, "0\n", "")


@pytest.mark.nightly
@pytest.mark.parametrize("callers", [1, 2])
@pytest.mark.parametrize("options", [(), ("-fsanitize=thread", "-g")], ids=["plain", "sanitized"])
def test_the_pool_gives_each_index_at_most_once(options: tuple[str, ...], callers: int, tmp_path: Path) -> None:
    program = build(tmp_path / "pool", *options, driver="thread_pool_driver.cpp")
    process = subprocess.run([program, str(callers), "2000"], capture_output=True, text=True, check=False, timeout=120)
    assert (process.returncode, process.stdout, process.stderr) == (0, "0\n", "")
