"""``-v``: code path, layout, plan and the drafter's decisions; and one set of names for code paths everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.runtime.kernels import CODE_PATHS, KERNEL_NAMES, PORTABLE, load
from tests.edgedec.cli.conftest import Edgedec

KERNELS = load()
USABLE = [] if KERNELS is None else [path for path in CODE_PATHS if KERNELS.usable(path)]


def run(*command: str | Path, kernel: str = "") -> subprocess.CompletedProcess[str]:
    """A process of its own: the code path is chosen once per process."""
    return subprocess.run(
        [sys.executable, "-m", "edgedec", *map(str, command)],
        env={**os.environ, "EDGEDEC_KERNEL": kernel},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kernel", [*USABLE, PORTABLE])
def test_a_code_path_has_one_name(bundle: Path, kernel: str) -> None:
    done = run("generate", "-m", bundle, "-p", "o", "-n", "2", "--temp", "0", "--json", "-v", kernel=kernel)
    assert done.returncode == 0, done.stderr
    assert f'"kernel": "{kernel}"' in done.stdout
    assert f"CPU kernels: {kernel}, because EDGEDEC_KERNEL asks for it" in done.stderr
    done = run("doctor", kernel=kernel)
    (line,) = (line for line in done.stdout.splitlines() if "CPU kernels: " in line)
    assert line.startswith(f"ok      CPU kernels: {kernel}")


@pytest.mark.skipif(not USABLE, reason="the kernels were not built")
def test_the_fastest_path_says_so(bundle: Path) -> None:
    done = run("plan", "-m", bundle, "-v")
    assert f"CPU kernels: {USABLE[0]}, because it is the fastest that runs on this processor" in done.stderr


def test_a_wrong_name_lists_the_right_ones(bundle: Path) -> None:
    done = run("generate", "-m", bundle, "-p", "o", kernel="avx9")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"EDGEDEC_KERNEL must be one of {', '.join(KERNEL_NAMES)}, not 'avx9'" in done.stderr


def test_generate_says_what_it_does(bundle: Path) -> None:
    done = run("generate", "-m", bundle, "-p", "oo", "-n", "40", "--temp", "0", "--spec-type", "auto", "-v")
    assert done.returncode == 0, done.stderr
    plan = next(line for line in done.stderr.splitlines() if ": plan, the best of " in line)
    assert "no budget; context " in plan
    assert "drafter auto without a draft model, chain of 9 nodes" in plan
    assert " guesses; by estimate: copy " in done.stderr
    assert "edgedec.cli.console: reading the prompt: prompt tokens" in done.stderr


def test_without_it_nothing_is_said(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("generate", "-m", bundle, "-p", "o", "-n", "40", "--temp", "0", "--spec-type", "auto", "--json")
    assert (outcome.code, outcome.stderr) == (0, "")
