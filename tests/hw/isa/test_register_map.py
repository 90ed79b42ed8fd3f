from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from edgedec.errors import ToolError, UsageError
from edgedec.host.install_hint import install_extra
from edgedec.hw.isa.ip_core import REGISTER_BYTES
from edgedec.hw.isa.register_map import VALUE, Access, Field, Register, RegisterMap
from edgedec.hw.isa.registers import BOARD_REGISTER_MAP, MAP_VERSION, REGISTER_MAP


def field(name: str = VALUE, bits: int = 32, reset: int = 0) -> Field:
    return Field(name=name, bits=bits, description="A field.", reset=reset)


def register(name: str = "one", offset: int = 0, fields: Any = None, **options: Any) -> Register:
    fields = (field(),) if fields is None else fields
    return Register(
        **{"access": Access.READ_WRITE, "description": "A register.", **options},
        name=name,
        offset=offset,
        fields=fields,
    )


def register_map(*registers: Register) -> RegisterMap:
    return RegisterMap(name="test", registers=registers, description="A map.")


def test_a_map_ends_with_its_last_register() -> None:
    assert register_map().bytes == 0
    assert register_map(register(), register("two", 8, count=3)).bytes == 20


def test_a_mask_has_a_one_for_every_bit_of_a_field() -> None:
    assert register(fields=(field(bits=1),)).mask == 0b1
    assert register(fields=(field("low", 3), field("high", 2))).mask == 0b11111
    assert register(fields=(field(bits=64),)).mask == (1 << 64) - 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: field(name="a-b"), "a field's name must be an identifier, not 'a-b'"),
        (lambda: field(bits=65), "field value: bits must be 1 to 64, not 65"),
        (lambda: field(bits=2, reset=4), "field value: reset must fit 2 bits, not 0x4"),
        (lambda: register(name="1"), "a register's name must be an identifier, not '1'"),
        (lambda: register(fields=()), r"fields must be some, with different names, not \[\]"),
        (lambda: register(fields=(field(), field())), "with different names, not"),
        (lambda: register(fields=(field(bits=60), field("x"))), "wider than 64 bits"),
        (lambda: register(offset=2), "register one: offset must be a multiple of 4, not 0x2"),
        (lambda: register(offset=4, fields=(field(bits=33),)), "register one: offset must be a multiple of 8, not 0x4"),
        (lambda: register(offset=-4), "must be a multiple of 4"),
        (lambda: register(count=0), "register one: count must be positive, not 0"),
        (lambda: register(access=Access.PULSE), "a pulse must be one bit that is 0 at reset"),
        (lambda: register_map(register(), register(name="two")), "register two at 0x0 overlaps the one before it"),
        (lambda: register_map(register(count=2), register(name="two", offset=4)), "overlaps"),
        (lambda: register_map(register(), register(offset=4)), "must have different names"),
        (lambda: register_map(register(enabled_by="two")), "there is no register 'two'; there are one"),
        (
            lambda: register_map(register(enabled_by="two"), register("two", 4, (field(bits=2),))),
            "one and its two must have the same bits",
        ),
    ],
)
def test_invalid_maps_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


# registers of version 2: offset, count, fields as name:lowest bit+bits
LAYOUT = """
identity 0x000 1 constant value:0+32
version 0x004 1 constant value:0+32
configuration_hash 0x008 1 read_only value:0+64
control 0x010 1 pulse start:0+1 commit:1+1 soft_reset:2+1 latch_counters:3+1 clear_counters:4+1
status 0x014 1 read_only busy:0+1 done:1+1 error:2+1 resetting:3+1
interrupt_status 0x018 1 write_one_to_clear done:0+1 error:1+1 committed:2+1
interrupt_enable 0x01c 1 read_write done:0+1 error:1+1 committed:2+1
program_address 0x020 1 read_write value:0+64
program_bytes 0x028 1 read_write value:0+32
watchdog_limit 0x02c 1 read_write value:0+32
image_address 0x030 1 read_write value:0+64
kv_address 0x038 1 read_write value:0+64
input_address 0x040 1 read_write value:0+64
output_address 0x048 1 read_write value:0+64
pass_parameters 0x050 1 read_write slots:0+4 committed:4+20 logits:24+2
commit_slots 0x054 1 read_write value:0+8
queue 0x05c 1 read_only ended:0+8 waiting:8+8
position 0x060 8 read_write value:0+20
mask 0x080 8 read_write value:0+8
error 0x0a0 1 read_only cause:0+8 descriptor:8+24
descriptor_select 0x0a4 1 read_write value:0+16
error_address 0x0a8 1 read_only value:0+64
descriptor_cycles 0x0b0 1 read_only value:0+32
isa_version 0x0b4 1 constant value:0+32
rtlil_hash 0x0b8 1 read_only value:0+64
counter_cycles 0x0c0 1 read_only value:0+64
counter_beats 0x0c8 1 read_only value:0+64
counter_starved 0x0d0 1 read_only value:0+64
counter_blocked 0x0d8 1 read_only value:0+64
counter_dependency 0x0e0 1 read_only value:0+64
counter_descriptors 0x0e8 1 read_only value:0+64
sequence_begins 0x0f0 1 read_write value:0+8
sequence_group 0x100 8 read_write value:0+20
later_committed 0x120 7 read_write value:0+20
"""


def test_the_layout_of_the_driver_is_fixed() -> None:
    """Check this because a driver of another version relies on every bit of it; a change needs another MAP_VERSION."""
    assert MAP_VERSION == REGISTER_MAP["version"].reset == 4
    lines = []
    for entry in REGISTER_MAP.registers:
        fields = (f"{field.name}:{lsb}+{field.bits}" for field, lsb in entry.positions())
        offset, access = REGISTER_MAP.offsets()[entry.name], entry.access.name.lower()
        lines.append(" ".join((entry.name, f"{offset:#05x}", str(entry.count), access, *fields)))
    assert lines == LAYOUT.split("\n")[1:-1]


def test_the_offsets_of_the_driver_are_fixed() -> None:
    """Check this because a driver of another version relies on these; a change needs another MAP_VERSION."""
    offsets = REGISTER_MAP.offsets()
    assert (offsets["identity"], offsets["version"], offsets["configuration_hash"]) == (0, 4, 8)
    assert list(offsets.values()) == sorted(offsets.values())
    assert REGISTER_MAP.bytes <= 4096
    assert REGISTER_MAP["identity"].reset.to_bytes(4, "little") == b"edec"


def compiled(text: str, folder: Path, name: str | None = None) -> Any:
    """Return a map of a file, of which it is the only one without a name."""
    systemrdl = pytest.importorskip("systemrdl")
    path = folder / "map.rdl"
    path.write_text(text)
    compiler = systemrdl.RDLCompiler()
    compiler.compile_file(str(path))
    return compiler.elaborate(name).top


@pytest.mark.rtl
@pytest.mark.parametrize("whole", [REGISTER_MAP, BOARD_REGISTER_MAP], ids=lambda one: one.name)
def test_systemrdl_equals_the_table(tmp_path: Path, whole: RegisterMap) -> None:
    top = compiled(REGISTER_MAP.systemrdl() + BOARD_REGISTER_MAP.systemrdl(), tmp_path, whole.name)
    assert top.inst_name == whole.name
    nodes = {node.inst_name: node for node in top.registers()}
    assert list(nodes) == [register.name for register in whole.registers]
    for entry in whole.registers:
        node = nodes[entry.name]
        assert node.raw_address_offset == whole.offsets()[entry.name]
        assert node.get_property("regwidth") == 8 * entry.bytes
        if entry.count > 1:
            assert node.array_dimensions == [entry.count]
            assert node.array_stride == entry.bytes
        else:
            assert not node.is_array
        assert node.get_property("desc") == entry.description
        fields = list(node.fields())
        for (expected, lsb), compiled_field in zip(entry.positions(), fields, strict=True):
            assert (compiled_field.inst_name, compiled_field.low, compiled_field.width) == (
                expected.name,
                lsb,
                expected.bits,
            )
            assert compiled_field.is_sw_readable == (entry.access is not Access.PULSE)
            assert compiled_field.is_sw_writable == (entry.access not in (Access.CONSTANT, Access.READ_ONLY))
            assert compiled_field.is_hw_writable == (entry.access is Access.READ_ONLY)
            assert bool(compiled_field.get_property("singlepulse")) == (entry.access is Access.PULSE)
            assert bool(compiled_field.get_property("woclr")) == (entry.access is Access.WRITE_ONE_TO_CLEAR)
            assert compiled_field.get_property("reset") == (
                None if entry.access is Access.READ_ONLY else expected.reset
            )
            assert compiled_field.get_property("desc") == expected.description


def test_quotes_and_backslashes_survive(tmp_path: Path) -> None:
    entry = Register(
        name="one", offset=0, access=Access.READ_WRITE, fields=(field(),), description='say "a\\b" and go on'
    )
    node = next(iter(compiled(register_map(entry).systemrdl(), tmp_path).registers()))
    assert '"a' in node.get_property("desc")


@pytest.mark.rtl
def test_pages_are_written(tmp_path: Path) -> None:
    pytest.importorskip("peakrdl_html")
    REGISTER_MAP.html(tmp_path / "pages")
    assert (tmp_path / "pages" / "index.html").is_file()
    assert (tmp_path / "pages" / "edgedec.rdl").read_text() == REGISTER_MAP.systemrdl()


def test_without_the_tool_pages_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peakrdl_html", None)
    with pytest.raises(ToolError, match=re.escape(install_extra("hdl"))):
        REGISTER_MAP.html(tmp_path)


def test_the_address_space_is_the_least_that_a_bus_takes_and_holds_the_map() -> None:
    assert REGISTER_BYTES == 4096
    assert REGISTER_MAP.bytes <= REGISTER_BYTES
