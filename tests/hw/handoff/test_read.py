"""Read the hand-off file of a bitstream, and refuse everything that must not reach a board."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import BundleError, UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.handoff.read import check_handoff, read_handoff
from edgedec.hw.handoff.write import FAMILIES, write_hwh
from edgedec.hw.isa.instructions import ISA_VERSION
from edgedec.hw.isa.registers import REGISTER_MAP
from tests.sim.support.make_small_top import CONFIG

KV260 = AcceleratorConfig()


def written(path: Path, config: AcceleratorConfig = CONFIG, family: str = "zynq-ultrascale+") -> bytes:
    write_hwh(config, path, family=family)
    return path.read_bytes()


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("interrupt", [True, False])
def test_a_written_file_is_read(tmp_path: Path, family: str, interrupt: bool) -> None:
    path = tmp_path / "a.hwh"
    write_hwh(CONFIG, path, family=family, interrupt=interrupt)
    handoff = read_handoff(path)
    check_handoff(handoff, CONFIG)
    assert handoff.configuration_hash == CONFIG.hash
    assert handoff.name == "accelerator_0"
    assert handoff.address == FAMILIES[family].accelerator_address
    assert handoff.size_bytes >= REGISTER_MAP.bytes
    assert handoff.clock == 0
    assert handoff.clock_hz == pytest.approx(CONFIG.clock_hz, rel=1e-3)
    assert handoff.port_bits == handoff.memory_bits == (32, 32)


@pytest.mark.parametrize(("family", "bits"), [("zynq-ultrascale+", 128), ("zynq-7000", 64)])
def test_four_wide_ports_are_read(tmp_path: Path, family: str, bits: int) -> None:
    config = replace(KV260, beat_bytes=4 * bits // 8)
    written(tmp_path / "a.hwh", config, family)
    handoff = read_handoff(tmp_path / "a.hwh")
    check_handoff(handoff, config)
    assert handoff.memory_bits == (bits,) * 4
    assert len(handoff.memory_ports) == 4


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no hand-off file for family 'ecp5'; there is for zynq"):
        write_hwh(CONFIG, tmp_path / "a.hwh", family="ecp5")
    with pytest.raises(UsageError, match=r"family zynq-7000 is 32, 64 bits wide, the configuration's are 128"):
        write_hwh(KV260, tmp_path / "a.hwh", family="zynq-7000")
    with pytest.raises(UsageError, match="the fabric's clock is 377925 Hz or more, not 1000"):
        write_hwh(CONFIG, tmp_path / "a.hwh", family="zynq-ultrascale+", clock_hz=1000)


def edited(original: str, replacement: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert original in text
        return text.replace(original, replacement)

    return edit


HASH = f"{CONFIG.hash:#018x}"
BOMB = (
    '<!DOCTYPE EDKSYSTEM [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))
    + "]>"
)
DAMAGES: dict[str, tuple[Callable[[str], str], str]] = {
    "empty": (lambda _: "", "it is damaged"),
    "no XML": (lambda _: "PK\x03\x04", "it is damaged"),
    "another root": (lambda _: "<html/>", "has 0 blocks edgedec:edgedec:accelerator:4.0, not one; its blocks: none"),
    "a bomb": (
        lambda text: text.replace("<EDKSYSTEM", BOMB + "<EDKSYSTEM", 1).replace(HASH, "&j;"),
        "it has a document type",
    ),
    "no accelerator": (
        edited('VLNV="edgedec:edgedec:accelerator:4.0"', 'VLNV="xilinx.com:hls:resize_accel:1.0"'),
        "has 0 blocks .*its blocks: xilinx.com:hls:resize_accel:1.0, xilinx.com:ip:axi_intc",
    ),
    "another version": (edited("accelerator:4.0", "accelerator:1.0"), "has 0 blocks .*edgedec:edgedec:accelerator:1.0"),
    "two accelerators": (edited("xilinx.com:ip:axi_intc:4.1", "edgedec:edgedec:accelerator:4.0"), "has 2 blocks"),
    "no hash": (edited("CONFIGURATION_HASH", "HASH"), "accelerator_0 has no parameter CONFIGURATION_HASH"),
    "a hash that is none": (edited(HASH, "0x12 34"), "CONFIGURATION_HASH is '0x12 34', no number of 64 bits"),
    "a hash too wide": (edited(HASH, "0x1" + 16 * "0"), "no number of 64 bits"),
    "another hash": (
        edited(HASH, "0x1"),
        rf"configuration 0000000000000001, the program is for {CONFIG.hash:016x}; take",
    ),
    "another instruction set": (
        edited(f'NAME="ISA_VERSION" VALUE="{ISA_VERSION}"', 'NAME="ISA_VERSION" VALUE="1"'),
        rf"has version 1 of the instruction set \(ISA_VERSION\), this edgedec's programs have {ISA_VERSION}; build the",
    ),
    "no instruction set": (edited("ISA_VERSION", "ISA"), "accelerator_0 has no parameter ISA_VERSION"),
    "no RTLIL": (edited("RTLIL_HASH", "RTLIL"), "accelerator_0 has no parameter RTLIL_HASH"),
    "no processing system": (edited('IS_PL="FALSE"', 'IS_PL="TRUE"'), "has 0 processing systems, not one"),
    "no address": (edited('MEMTYPE="REGISTER"', 'MEMTYPE="OTHER"'), "has no address for accelerator_0"),
    "an address that is none": (edited('BASEVALUE="0xa0000000"', 'BASEVALUE="there"'), "BASEVALUE is 'there'"),
    "an odd address": (edited('BASEVALUE="0xa0000000"', 'BASEVALUE="0xa0000004"'), "from 0xa0000004 on"),
    "too few registers": (
        edited('HIGHVALUE="0xa0000fff"', 'HIGHVALUE="0xa000000f"'),
        "has 16 bytes from 0xa0000000 on",
    ),
    "wider ports": (
        edited('DATAWIDTH="32" NAME="m_axi_1"', 'DATAWIDTH="64" NAME="m_axi_1"'),
        r"\[32, 64\] bits wide, the",
    ),
    "fewer ports": (edited('NAME="m_axi_1"', 'NAME="m_axi_9"'), r"\[32\] bits wide, the configuration's \[32, 32\]"),
    "no width": (edited('DATAWIDTH="32" NAME="m_axi_0"', 'NAME="m_axi_0"'), "DATAWIDTH of m_axi_0 is None"),
    "a port of another width": (
        edited('NAME="C_SAXIGP3_DATA_WIDTH" VALUE="32"', 'NAME="C_SAXIGP3_DATA_WIDTH" VALUE="128"'),
        "m_axi_1 of 32 bits is wired to a port of the processing system of 128",
    ),
    "a port without width": (edited("C_SAXIGP2_DATA_WIDTH", "WIDTH"), "no parameter C_SAXIGP2_DATA_WIDTH"),
    "no clock": (edited('NAME="clk"', 'NAME="aclk"'), "the accelerator has no port clk"),
    "a clock from nowhere": (
        lambda text: text.replace('NAME="pl_clk0"', 'NAME="clk_out"').replace("CLKFREQUENCY", "FREQUENCY"),
        "neither where clk comes from nor how fast it is",
    ),
    "a speed that is none": (edited('CLKFREQUENCY="249997500"', 'CLKFREQUENCY="fast"'), "CLKFREQUENCY is 'fast'"),
}


@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_damage_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.hwh"
    change, message = DAMAGES[damage]
    path.write_text(change(written(path).decode()))
    with pytest.raises(BundleError, match=message) as raised:
        check_handoff(read_handoff(path), CONFIG)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(("count", "end"), [(8, "other:7:1"), (9, "other:7:1, ...")])
def test_eight_other_blocks_are_named(tmp_path: Path, count: int, end: str) -> None:
    modules = "".join(f'<MODULE VLNV="an:other:{number}:1"/>' for number in range(count))
    (tmp_path / "a.hwh").write_text(f"<EDKSYSTEM><MODULES>{modules}</MODULES></EDKSYSTEM>")
    with pytest.raises(BundleError, match=f"{re.escape(end)}; copy"):
        read_handoff(tmp_path / "a.hwh")


def test_a_missing_file_a_folder_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"a.hwh .*cannot be read \(No such file"):
        read_handoff(tmp_path / "a.hwh")
    with pytest.raises(BundleError, match="cannot be read"):
        read_handoff(tmp_path)
    with (tmp_path / "a.hwh").open("wb") as file:
        file.truncate(1 << 32)
    with pytest.raises(BundleError, match="larger than 67108864 bytes"):
        read_handoff(tmp_path / "a.hwh")


@settings(max_examples=30)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.hwh"
    text = written(path)
    path.write_bytes(text[: int(share * (len(text) - len(b"</EDKSYSTEM>")))])
    with pytest.raises(BundleError, match="it is damaged"):
        read_handoff(path)


@settings(max_examples=30)
@given(at=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, at: float, byte: int) -> None:
    """Check that a file which is read still has all that the driver uses, except for another clock or name."""
    path = tmp_path_factory.mktemp("flip") / "a.hwh"
    text = bytearray(written(path))
    original = read_handoff(path)
    text[int(at * len(text))] = byte
    path.write_bytes(text)
    with contextlib.suppress(BundleError):
        changed_handoff = read_handoff(path)
        check_handoff(changed_handoff, CONFIG)
        assert changed_handoff.configuration_hash == original.configuration_hash
        assert changed_handoff.port_bits == original.port_bits


def test_a_hierarchy_and_another_clock_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.hwh"
    text = written(path).decode()
    path.write_text(text.replace('FULLNAME="/accelerator_0"', 'FULLNAME="/engine/accelerator_0"'))
    assert read_handoff(path).name == "engine/accelerator_0"
    path.write_text(text.replace('NAME="pl_clk0"', 'NAME="clk_out1"'))
    assert (read_handoff(path).clock, read_handoff(path).clock_hz) == (None, 249997500.0)
    path.write_text(text.replace('BUSNAME="accelerator_0_m_axi_1"', 'BUSNAME="smartconnect"', 1))
    assert read_handoff(path).memory_bits == (32, None)


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "a.hwh")
    different = replace(CONFIG, top_k=3)
    message = f"it is of configuration {CONFIG.hash:016x}, the program is for {different.hash:016x}"
    with pytest.raises(BundleError, match=message):
        check_handoff(read_handoff(tmp_path / "a.hwh"), different)
