"""Test the report of a run of llama.cpp's tests of its server; and run them, if their folder is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers.llama_server_report import REPORT, report_text, suite_version
from tests.peers.llama_server_tests import LIST, ROOT, Outcome, read_list

SUITE = os.environ.get("LLAMA_SERVER_TESTS")
OUTCOME = Outcome(
    passed=["unit/test_a.py::test_one", "unit/test_a.py::test_two"],
    failed=["unit/test_b.py::test_three"],
    listed={"unit/test_c.py::test_four": "no such model", "unit/test_c.py::test_five": "no such model"},
)


def suite_in(folder: Path) -> Path:
    (suite := folder / "tools" / "server" / "tests").mkdir(parents=True)
    return suite


def test_the_report_has_the_figures_and_the_failures() -> None:
    text = report_text(OUTCOME, "commit abc")
    assert "| llama.cpp | commit abc |" in text
    for row in ("passed | 2", "failed | 1", "skipped by the suite itself | 0", "do not apply | 2", "no such model | 2"):
        assert f"| {row} |" in text
    assert "- failed: `unit/test_b.py::test_three`" in text
    head = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    commit = re.search(r"\| edgedec \| commit (\w*)", text)
    assert commit is not None
    assert head.stdout.startswith(commit[1])


def test_the_commit_of_an_sdist_is_that_of_its_change_log(tmp_path: Path) -> None:
    suite = suite_in(tmp_path / "vendor" / "llama.cpp")
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: 1.2.3\n")
    changes = "# Changelog\n\n## [1.2.3]\n\n- feat: update llama.cpp to ggml-org/llama.cpp@abc123\n- @def456\n"
    (tmp_path / "CHANGELOG.md").write_text(changes)
    assert suite_version(suite) == "commit abc123, in llama-cpp-python 1.2.3"


def test_a_repository_tells_its_commit_and_others_tell_none(tmp_path: Path) -> None:
    suite = suite_in(tmp_path / "a" / "llama.cpp")
    assert suite_version(suite) == "of an unknown commit"
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (
        ["init", "-q"],
        [*who, "commit", "-q", "--allow-empty", "-m", "x", "--date", "2026-01-02T03:04:05Z"],
    ):
        environment = {**os.environ, "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z"}
        subprocess.run(["git", "-C", str(suite.parents[2]), *command], check=True, env=environment)
    assert re.fullmatch(r"commit \w{7,} of 2026-01-02", suite_version(suite))


def test_the_report_in_the_documentation_is_of_the_present_list() -> None:
    """Write it anew by the command that it names if this fails."""
    page = REPORT.read_text("utf-8")
    table = page.partition("| reason why tests do not apply |")[2]
    told = dict(re.findall(r"(?m)^\| (.+) \| (\d+) \|$", table))
    assert sorted(told) == sorted(set(read_list().values())), LIST.name
    assert "| failed | 0 |" in page
    assert "not committed" not in page


@pytest.mark.nightly
@pytest.mark.skipif(SUITE is None, reason="LLAMA_SERVER_TESTS does not name llama.cpp's tools/server/tests")
def test_llama_servers_tests_pass(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.peers.llama_server_tests", "--tests", str(SUITE)]
    command += ["--report", str(tmp_path / "report.md"), "--log", str(tmp_path / "log")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "| failed | 0 |" in (tmp_path / "report.md").read_text()
