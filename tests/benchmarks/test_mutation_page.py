"""Compare docs/reports/mutation.md with what its command says for the commit that the page names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.support.docs_tables import blocks, outdated_blocks
from edgedec.errors import ToolError
from tests.mutation.campaign import blocks_at

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reports/mutation.md"
RESULTS = ROOT / "tests/mutation/results.jsonl"


def commit() -> str:
    """Return the commit that the page names."""
    found = re.fullmatch(
        r"The tables count the sources of commit `([0-9a-f]{8})`\.", blocks(PAGE.read_text("utf-8"))["mutation commit"]
    )
    assert found, "the page names no commit"
    return found[1]


def test_the_page_names_a_commit() -> None:
    assert commit()


@pytest.mark.thorough
def test_the_page_says_what_its_command_says() -> None:
    git = shutil.which("git")
    if (
        git is None
        or subprocess.run([git, "cat-file", "-e", f"{commit()}^{{commit}}"], cwd=ROOT, check=False).returncode
    ):
        pytest.skip(f"there is no history with commit {commit()}")
    contents = blocks_at(ROOT, commit(), RESULTS)
    assert not outdated_blocks(contents), "run: python -m tests.mutation.campaign --plan --write-docs"


def test_a_commit_that_is_not_there_is_named() -> None:
    if shutil.which("git") is None:
        pytest.skip("git is missing")
    with pytest.raises(ToolError, match=r"git rev-parse .* fails: .*; fetch the whole history"):
        blocks_at(ROOT, "0" * 40, RESULTS)
