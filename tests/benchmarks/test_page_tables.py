"""Test that the pages have the tables which the code says, and that ``make figures`` writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accelerator import device_users, options
from benchmarks.memory import sizes
from benchmarks.speculation import draft_law, estimates
from benchmarks.support.docs_tables import OWNERS, block_names, outdated_blocks

ROOT = Path(__file__).parents[2]
TABLES = {
    **options.TABLES,
    **sizes.TABLES,
    "users": device_users.users_table,
    "users first": device_users.first_token_table,
    "law drafts": draft_law.kept_table,
    "drafters": estimates.kept_table,
}
SLOW = {*options.TABLES, "users", "users first"}  # tables that take half a second each
# Owners of blocks that take a quarter of an hour and more, or need the measured times of a host.
LONG = {"builds", "coverage", "kv", "speculation", "timing"}
# Programs that write whole pages, or blocks of another form.
WRITERS = (
    "-m tests.quantize.readers.support.make_formats_page",
    "-m tests.edgedec.families.support.make_family_table",
    ".ci/command_line_page.py",
    ".ci/draw_layers.py",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name in SLOW)) for name in sorted(TABLES)]
)
def test_the_page_has_the_table(name: str) -> None:
    assert outdated_blocks({name: TABLES[name]()}) == [], "run make figures"


def test_each_block_of_these_owners_has_a_table() -> None:
    owners = {name.split(" ")[0] for name in TABLES}
    assert {name for name in block_names() if name.split(" ")[0] in owners} == TABLES.keys()


def test_make_figures_runs_every_owner_that_takes_minutes() -> None:
    text = (ROOT / "Makefile").read_text("utf-8")
    recipe = text[text.index("\nfigures:") :].split("\n\n")[0]
    expected = [command for owner, command in OWNERS.items() if owner not in LONG]
    for command in (*expected, *WRITERS):
        assert f"\t@.venv/bin/python {command}\n" in recipe + "\n", command
