"""Check that a stored program means the same to the next version: every bit of it is listed here."""

from __future__ import annotations

from enum import IntEnum

import pytest

from edgedec.hw.blocks.instruction_layouts import header_layout, layout
from edgedec.hw.isa.instructions import Base, Destination, Opcode, Sink, Source, When

COMMON = "opcode:0+4 wait:4+1 when:5+2 reserved:7+1"
# fields as name:lowest bit+bits
FIELDS = {
    Opcode.STOP: "",
    Opcode.READ: "destination:8+4 base:12+2 spare:14+8 start:22+36 beats:58+24",
    Opcode.CACHE: "start:8+36 run:44+24 heads:68+8 group:76+8 ring:84+1",
    Opcode.COPY: "start:8+36 run:44+24 heads:68+8 ring:76+1",
    Opcode.LOAD: "elements:8+16",
    Opcode.VECTOR: "source:8+2 normed:10+1 blocks:11+16 eps:27+48",
    Opcode.MATRIX: (
        "fresh:8+1 int8:9+1 words:10+16 spare:26+3 blocks:29+16 planes:45+4 group_blocks:49+16 "
        "pre_shift:65+3 base0:68+9 base1:77+9 weight0:86+16 weight1:102+16 pair:118+1 rows:119+1 "
        "wide:120+1 sink:121+3 more:124+1 onward:125+1 start:126+16 elements:142+20 first:162+20 "
        "rotate:182+1 shift:183+6 relu2:189+1 gate_shift:190+4 counted:194+20 sum_shift:214+10"
    ),
    Opcode.ATTEND: "heads:8+8 group:16+8 kv_heads:24+8 start:32+36 run:68+24 window:92+17 sinks:109+17 ring:126+1",
}
NUMBERS: dict[type[IntEnum], str] = {
    Opcode: "STOP=0 READ=1 CACHE=2 COPY=3 LOAD=4 VECTOR=5 MATRIX=6 ATTEND=7",
    When: "ALWAYS=0 WITH_LOGITS=1 WITHOUT_LOGITS=2",
    Base: "IMAGE=0 INPUT=1",
    Destination: (
        "PROGRAM=0 LOAD=1 ANGLES=2 GAINS=3 WEIGHTS=4 ROWS=5 CODING=6 FACTORS=7 SCALES=8 KEYS_VALUES=9 COPY=10"
    ),
    Source: "LOAD=0 RESIDUAL=1 ATTENTION=2 GATE=3",
    Sink: "RESIDUAL=0 QUERIES=1 KEYS=2 VALUES=3 GATE=4 LOGITS=5",
}


@pytest.mark.parametrize("opcode", Opcode)
def test_fields_keep_their_places(opcode: Opcode) -> None:
    actual = [f"{name}:{field.offset}+{field.width}" for name, field in layout(opcode) if name != "unused"]
    assert " ".join(actual) == f"{COMMON} {FIELDS[opcode]}".strip()


@pytest.mark.parametrize("kind", NUMBERS, ids=lambda kind: kind.__name__)
def test_numbers_keep_their_meaning(kind: type[IntEnum]) -> None:
    assert " ".join(f"{member.name}={int(member)}" for member in kind) == NUMBERS[kind]


def test_the_header_keeps_its_fields() -> None:
    actual = [f"{name}:{field.offset}+{field.width}" for name, field in header_layout()]
    assert actual == ["magic:0+64", "configuration:64+64", "instructions:128+32", "commit:160+32", "isa_version:192+64"]
