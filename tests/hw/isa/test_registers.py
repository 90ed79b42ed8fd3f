"""Check numbers that drivers of other versions rely on: causes of errors, and what registers hold after a reset."""

from __future__ import annotations

from edgedec.hw.isa.instructions import ISA_VERSION
from edgedec.hw.isa.registers import MAP_VERSION, REGISTER_MAP, Cause

AFTER_RESET = {  # registers that are not 0
    "identity": int.from_bytes(b"edec", "little"),
    "version": MAP_VERSION,
    "isa_version": ISA_VERSION,
}


def test_causes_keep_their_numbers() -> None:
    assert " ".join(f"{name}={cause}" for name, cause in Cause.__members__.items()) == (
        "NONE=0 CONFIGURATION=1 CUT_SHORT=2 DESCRIPTOR=3 SLOTS=4 POSITION=5 READ=6 WRITE=7 WATCHDOG=8 WEIGHT=9 ADDRESS=10 "
        "OVERRUN=11"
    )


def test_registers_are_zero_after_a_reset_unless_they_identify_the_map() -> None:
    resets = {register.name: [field.reset for field in register.fields] for register in REGISTER_MAP.registers}
    assert {name: values for name, values in resets.items() if any(values)} == {
        name: [value] for name, value in AFTER_RESET.items()
    }
