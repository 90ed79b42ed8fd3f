"""Check numbers on which both ends of the host link rely, and what an identity may say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgedec.errors import DeviceError
from edgedec.hw.isa.link_protocol import Identity, LinkCommand, RunItem, Status, run_item

IDENTITY = Identity(simulated=False, granule=4, memory_address=0, memory_bytes=1 << 20, clock_hz=1_000_000)


def test_commands_statuses_and_items_keep_their_numbers() -> None:
    found = {
        kind: " ".join(f"{one}={number}" for one, number in kind.__members__.items())
        for kind in (LinkCommand, Status, RunItem)
    }
    assert found == {
        LinkCommand: ("IDENTIFY=1 READ_REGISTER=2 WRITE_REGISTER=3 READ_MEMORY=4 WRITE_MEMORY=5 WAIT=6 RUN=7"),
        Status: "OK=0 COMMAND=1 ARGUMENT=2 ORDER=3 BUS=4 EXPECTATION=5",
        RunItem: "PADDING=0 READ=1 WRITE=2 WAIT=3 EXPECT=4",
    }


def test_an_item_is_a_word_of_kind_count_and_register_and_its_values() -> None:
    assert run_item(RunItem.READ, 0x44, count=3) == bytes([0x11, 0, 3, 1])
    assert run_item(RunItem.WRITE, 0x3FC, (5,)) == bytes([0xFF, 0, 1, 2, 5, 0, 0, 0])


@pytest.mark.parametrize("granule", [4, 8, 16])
def test_an_identity_is_read_again(granule: int) -> None:
    identity = replace(IDENTITY, simulated=True, phases=7, granule=granule, block_bytes=64, receive_bytes=100)
    assert len(identity.packed()) == 32
    assert Identity.unpacked(identity.packed()) == identity


@pytest.mark.parametrize("member", [{"granule": 2}, {"granule": 17, "block_bytes": 34}, {"granule": 32}])
def test_another_granule_is_refused(member: dict[str, Any]) -> None:
    with pytest.raises(DeviceError, match="the link says of itself what cannot be"):
        Identity.unpacked(replace(IDENTITY, **member).packed())
