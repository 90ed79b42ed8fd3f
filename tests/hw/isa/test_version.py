"""Check that neither the instruction set nor the register map changes without its version."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BundleError
from edgedec.hw.compiler.constants import item_bytes
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa import instructions, output_layout
from edgedec.hw.isa.instructions import (
    COMMON,
    FIELDS,
    INSTRUCTION_BYTES,
    ISA_VERSION,
    MAGIC,
    OPTIONAL,
    SIGNED,
    Base,
    Destination,
    Instruction,
    Opcode,
    ProgramHeader,
    Sink,
    Source,
    When,
    pack_program,
    unpack_program,
)
from edgedec.hw.isa.kv_layout import CacheRows, KvLayout
from edgedec.hw.isa.register_map import RegisterMap
from edgedec.hw.isa.registers import BOARD_REGISTER_MAP, MAP_VERSION, REGISTER_MAP, Cause
from edgedec.hw.isa.striping import physical_address

ISA_DIGESTS = {
    2: "fdeafc9940108ebaa6bfaa5d4bfbc1fde171f14095950a943224bb21d7c32318",
    3: "20f9aa175421c236a6a893ef2673b5ead69d456c4e8284d014e50839a6fec773",
    4: "237938bd54f5cb9126c5f98186a9e369348b35f2f1623f13c93c36bc255c43e5",
}  # digest of each version of the instruction set
MAP_DIGESTS = {
    2: "4d4d65597498bb5a4d39e9f0e1beb60c3abd442fcbf48d36c9d4687477881000",
    3: "baa123531d50142e39fd562891e44a1bec9512ab8651dc8edaab917a12cad434",
    4: "66140a8a04a638c4f3edf6ef238ae315da14b031f5800aad4ff3d3f7729c7898",
}  # digest of each version of the register maps


def isa_declared() -> Any:
    """Return the instruction set; layouts in memory are sampled."""
    numbers = {
        kind.__name__: {one.name: int(one) for one in kind} for kind in (Opcode, When, Base, Destination, Source, Sink)
    }
    config = AcceleratorConfig()
    return {
        "instruction_bytes": INSTRUCTION_BYTES,
        "magic": MAGIC,
        "header": ProgramHeader(configuration=1, instructions=2, commit=1, isa_version=0).pack().hex(),
        "numbers": numbers,
        "items": {
            one.name: item_bytes(one, config)
            for one in Destination
            if one.name not in ("PROGRAM", "KEYS_VALUES", "COPY")
        },
        "common": list(COMMON.items()),
        "fields": {opcode.name: list(FIELDS[opcode].items()) for opcode in Opcode},
        "signed": sorted(SIGNED),
        "optional": sorted(OPTIONAL),
        "output": {name: getattr(output_layout, name) for name in sorted(output_layout.__all__)},
        "keys_values": [sampled(*shape) for shape in ((16, 8, 8), (16, 64, 4), (64, 128, 16))],
        "striping": [
            physical_address(byte, ports=ports, port_bytes=8) for ports in (1, 2, 4) for byte in range(0, 40_000, 97)
        ],
    }


def sampled(beat_bytes: int, head_dim: int, chunk: int) -> Any:
    """Return where a layout puts the elements of some rows, and where a ring of it keeps positions."""
    layout = KvLayout(beat_bytes=beat_bytes, head_dim=head_dim, chunk=chunk)
    rows = 2 * layout.positions + 1
    codes = (np.arange(rows * head_dim) % 251).astype(np.uint8).view(np.int8).reshape(rows, head_dim)
    ring = CacheRows(layout=layout, rows=4 * layout.positions, window=2 * layout.positions)
    places = [(ring.place(position), ring.first(position)) for position in range(0, 9 * layout.positions, 3)]
    return [hashlib.sha256(layout.pack(codes).tobytes()).hexdigest(), layout.beats(rows), places]


def map_declared() -> Any:
    """Return both register maps without their descriptions and their versions, and the causes of errors."""
    lines = [
        [
            one.name,
            one.offset,
            one.count,
            one.access.name,
            [(field.name, field.bits) for field in one.fields],
            one.enabled_by,
        ]
        for one in (*REGISTER_MAP.registers, *BOARD_REGISTER_MAP.registers)
    ]
    return [lines, {cause.name: int(cause) for cause in Cause}]


def digest(declared: Any) -> str:
    return hashlib.sha256(json.dumps(declared).encode()).hexdigest()


def check(name: str, version: int, digests: dict[int, str], found: str, file: str) -> None:
    """Fail if a declaration is not the one that its version stands for."""
    __tracebackhide__ = True
    if digests.get(version) != found:
        pytest.fail(
            f"what {file} declares is not version {version} any more: raise {name} there, and write {max(digests) + 1}: "
            f'"{found}" beside the other digests of this test'
        )


def test_the_instruction_set_changes_with_its_version_only() -> None:
    check("ISA_VERSION", ISA_VERSION, ISA_DIGESTS, digest(isa_declared()), "hw/isa (instructions, layouts)")


def test_the_register_map_changes_with_its_version_only() -> None:
    check("MAP_VERSION", MAP_VERSION, MAP_DIGESTS, digest(map_declared()), "hw/isa/registers.py")


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (instructions, "SIGNED", frozenset({"base0"})),
        (output_layout, "ROWS_OFFSET", 8192),
    ],
)
def test_another_declaration_has_another_digest(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any
) -> None:
    before = digest(isa_declared())
    monkeypatch.setattr(module, name, value)
    monkeypatch.setitem(globals(), name, value)
    assert digest(isa_declared()) != before


def test_a_moved_field_fails_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FIELDS, Opcode.LOAD, {"elements": 17})
    with pytest.raises(pytest.fail.Exception, match=r'raise ISA_VERSION there, and write \d+: "[0-9a-f]{64}"'):
        test_the_instruction_set_changes_with_its_version_only()


@pytest.mark.parametrize(
    ("name", "register", "offset"),
    [("REGISTER_MAP", "commit_slots", 0x58), ("BOARD_REGISTER_MAP", "memory_status", 0x80C)],
)
def test_a_moved_register_fails_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, name: str, register: str, offset: int
) -> None:
    whole: RegisterMap = globals()[name]
    moved = [replace(one, offset=offset) if one.name == register else one for one in whole.registers]
    monkeypatch.setitem(globals(), name, replace(whole, registers=tuple(moved)))
    with pytest.raises(pytest.fail.Exception, match=r'raise MAP_VERSION there, and write \d+: "[0-9a-f]{64}"'):
        test_the_register_map_changes_with_its_version_only()


def test_a_program_says_its_instruction_set_and_another_one_is_refused() -> None:
    header = ProgramHeader(configuration=1, instructions=2, commit=1)
    assert header.isa_version == ISA_VERSION
    stop = [Instruction(Opcode.STOP, {})] * 2
    assert unpack_program(pack_program(header, stop))[0] == header
    old = ProgramHeader(configuration=1, instructions=2, commit=1, isa_version=ISA_VERSION - 1)
    with pytest.raises(
        BundleError, match=rf"version {ISA_VERSION - 1} of the instruction set, this edgedec's is {ISA_VERSION}"
    ):
        unpack_program(pack_program(old, stop))
