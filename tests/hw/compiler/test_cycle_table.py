"""Compare the modelled cycles of some passes with a table, so that a change of the model shows what it changes."""

from __future__ import annotations

import json
from dataclasses import fields

from edgedec.hw.compiler.cycles import PassCycles
from tests.hw.support.make_cycle_table import FILE, table


def test_the_modelled_cycles_are_those_of_the_table() -> None:
    """If the change is meant, write the table anew: ``python -m tests.hw.support.make_cycle_table``."""
    computed = table()
    assert all([*row, "waits"] == [field.name for field in fields(PassCycles)] for row in computed.values())
    assert computed == json.loads(FILE.read_text("utf-8"))
