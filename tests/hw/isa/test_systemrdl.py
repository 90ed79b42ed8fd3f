"""Compare lines of SystemRDL with their text: a compiler fills in what a line leaves out, so it cannot tell."""

from __future__ import annotations

from edgedec.hw.isa.register_map import VALUE, Access, Field, Register, RegisterMap


def placed(count: int) -> str:
    """Return the line that places registers at 0x8."""
    entry = Register(
        name="one",
        offset=8,
        access=Access.READ_WRITE,
        fields=(Field(name=VALUE, bits=33, description="A field."),),
        description="A register.",
        count=count,
    )
    (line,) = (
        line.strip()
        for line in RegisterMap(name="map", registers=(entry,), description="A map.").systemrdl().splitlines()
        if line.strip().startswith("} one")
    )
    return line


def test_equal_registers_name_their_number_and_their_distance() -> None:
    assert [placed(count) for count in (1, 2, 3)] == [
        "} one @ 0x8;",
        "} one[2] @ 0x8 += 0x8;",
        "} one[3] @ 0x8 += 0x8;",
    ]
