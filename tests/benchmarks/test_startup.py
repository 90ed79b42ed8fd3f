"""Test the benchmark of starts: the time is that of the first byte, and a first start finds nothing of an earlier one."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from edgedec.errors import DeviceError

startup = importlib.import_module("benchmarks.cpu.startup")

SLOW = """
import os, sys, time
sys.stdout.write("a"); sys.stdout.flush()
time.sleep(0.4)
folder = os.environ["XDG_CACHE_HOME"]
open(os.path.join(folder, "words"), "w").write(" ".join(sys.argv[1:]))
"""


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


@pytest.mark.thorough
def test_the_first_byte_counts_and_the_process_is_awaited(tmp_path: Path) -> None:
    result = startup.start(program(SLOW), "some.edgedec", tmp_path, verify=True)
    words = (tmp_path / "words").read_text().split()
    assert words[:3] == ["generate", "-m", "some.edgedec"]
    assert words[-1] == "--verify"
    assert result.cpu_s > 0
    assert result.first_token_s > 0


@pytest.mark.thorough
def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"ended with 3:\nno model"):
        startup.start(program("import sys; sys.stderr.write('no model'); sys.exit(3)"), "x", tmp_path)


def test_a_copy_of_a_bundle_has_no_layout(tmp_path: Path) -> None:
    bundle = tmp_path / "a.edgedec"
    bundle.mkdir()
    for name in ("manifest.json", "weights.bin", ".cpu-kernels.layout"):
        (bundle / name).write_text(name)
    copy = startup.linked(bundle, tmp_path / "new")
    assert sorted(path.name for path in copy.iterdir()) == ["manifest.json", "weights.bin"]


def test_a_row_has_medians() -> None:
    starts = [startup.Start(first_token_s=wall, cpu_s=cpu) for wall, cpu in ((3.0, 0.5), (1.0, 0.75), (2.0, 0.25))]
    row = startup._row("demo", "this", startup.Start(first_token_s=9.0, cpu_s=8.0), starts)
    assert (row["first_start_s"], row["first_start_cpu_s"]) == (9.0, 8.0)
    assert (row["later_least_s"], row["later_s"], row["later_most_s"]) == (1.0, 2.0, 3.0)
    assert (row["later_least_cpu_s"], row["later_cpu_s"]) == (0.25, 0.5)
