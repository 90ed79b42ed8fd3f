"""Test the lines of the systems that a host reaches over a serial line, whatever memory they have."""

from __future__ import annotations

import pytest

from tests.hw.system.test_inner_buses import system_of


@pytest.mark.parametrize("kind", ["block RAM", "SDRAM"])
def test_lines_are_single_and_idle_high(kind: str) -> None:
    members = system_of(kind).signature.members
    assert [members[name].shape for name in ("receive", "transmit", "interrupt")] == [1, 1, 1]
    assert [members[name].init for name in ("receive", "transmit")] == [1, 1]
