"""Test that benchmarks/README.md lists every benchmark once, with a page that quotes it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "benchmarks" / "README.md"
_MINUTES = r"(?:under 1|(?:about )?[1-9]\d*|some|hours)"  # minutes of a run with the defaults
_ROW = re.compile(
    rf"^\| (?P<question>[^|]*\?) \| `(?P<module>[\w.]+)` \| (?P<minutes>{_MINUTES})"
    r" \| (?P<machine>(?:any|Linux|torch|x86|a board)\b[^|]*) \| \[[^]]+\]\((?P<page>[^)#]+)\) \|$"
)
_HEADS = ("| question |", "|---")


def rows(text: str) -> list[re.Match[str]]:
    """Return the rows of the tables.

    Raises:
        ValueError: a row has another form.
    """
    found = []
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith(_HEADS):
            match = _ROW.match(line)
            if match is None:
                raise ValueError(f"this row is not | question? | `module` | minutes | machine | [page](path) |: {line}")
            found.append(match)
    return found


def runnable() -> set[str]:
    """Return the names of the benchmarks that a person runs: they have options."""
    found = set()
    for path in (ROOT / "benchmarks").rglob("*.py"):
        text = path.read_text("utf-8")
        if '__name__ == "__main__"' in text and ("ArgumentParser" in text or "run_tables(" in text):
            found.add(".".join(path.relative_to(ROOT / "benchmarks").with_suffix("").parts))
    return found


def test_every_benchmark_is_listed_once() -> None:
    listed = [row["module"] for row in rows(README.read_text("utf-8"))]
    assert sorted(listed) == sorted(runnable())


def test_every_row_has_a_page_that_quotes_it() -> None:
    for row in rows(README.read_text("utf-8")):
        page = Path(os.path.normpath(README.parent / row["page"]))
        text, module = page.read_text("utf-8"), row["module"]
        assert f"benchmarks.{module}" in text or f"benchmarks/{module.replace('.', '/')}.py" in text, (module, page)


def test_another_form_of_a_row_is_named() -> None:
    good = "| How fast? | `cpu.decode` | about 5 | any | [the report](report.md) |"
    assert len(rows(f"| question |\n|---|\n{good}")) == 1
    for wrong in (
        "| How fast? | cpu.decode | none |",
        good.replace("about 5", "?"),
        good.replace("| any ", "| ? "),
        good.replace("| any ", ""),
    ):
        with pytest.raises(ValueError, match="this row is not"):
            rows(f"| question |\n|---|\n{wrong}")
