"""Compare the ports of the Zynq system with those of the processing system that it is connected to."""

from __future__ import annotations

from tests.hw.system.test_inner_buses import system_of


def test_buses_are_as_wide_as_those_of_the_processing_system() -> None:
    system = system_of("zynq")
    widths = {name: len(getattr(system.registers, name)) for name in ("arid", "awid", "araddr", "rdata")}
    assert widths == {"arid": 12, "awid": 12, "araddr": 32, "rdata": 32}
    memory = {name: len(getattr(system.memory0, name)) for name in ("arid", "araddr", "rdata", "arlen")}
    assert memory == {"arid": 6, "araddr": 32, "rdata": 64, "arlen": 4}
