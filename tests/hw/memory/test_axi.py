"""Compare signatures of AXI4 and AXI4-Lite with the specification (ARM IHI 0022)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from amaranth.lib.wiring import Flow, Signature

from edgedec.hw.memory.axi import (
    BOUNDARY_BYTES,
    NUMBER_BITS,
    Burst,
    Response,
    axi4_read,
    axi4_write,
    axi_lite,
    beats_log2,
    burst_beats,
    check_data_bytes,
    completions,
    failures,
)

# widths of what a manager drives, and of what it reads, with 40 bits of address, 16 bytes of data, 5 bits of ID
ADDRESS = {"id": 5, "addr": 40, "len": 8, "size": 3, "burst": 2, "cache": 4, "prot": 3, "valid": 1}
READ = ({f"ar{name}": bits for name, bits in ADDRESS.items()} | {"rready": 1}, {"arready": 1, "rvalid": 1, "rlast": 1})
READ[1].update({"rid": 5, "rdata": 128, "rresp": 2})
WRITE = ({f"aw{name}": bits for name, bits in ADDRESS.items()}, {"awready": 1, "wready": 1, "bvalid": 1})
WRITE[0].update({"wdata": 128, "wstrb": 16, "wlast": 1, "wvalid": 1, "bready": 1})
WRITE[1].update({"bid": 5, "bresp": 2})
LITE = (
    {"awaddr": 9, "awprot": 3, "awvalid": 1, "wdata": 32, "wstrb": 4, "wvalid": 1, "bready": 1}
    | {"araddr": 9, "arprot": 3, "arvalid": 1, "rready": 1},
    {"awready": 1, "wready": 1, "bresp": 2, "bvalid": 1, "arready": 1, "rdata": 32, "rresp": 2, "rvalid": 1},
)
WIDE = {"address_bits": 40, "data_bytes": 16, "id_bits": 5}


@pytest.mark.parametrize(
    ("bus", "expected"),
    [(axi4_read(**WIDE), READ), (axi4_write(**WIDE), WRITE), (axi_lite(address_bits=9), LITE)],
    ids=["read", "write", "lite"],
)
def test_members_have_their_widths(bus: Signature, expected: tuple[Mapping[str, int], Mapping[str, int]]) -> None:
    widths: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for name, member in bus.members.items():
        widths[member.flow is not Flow.Out][name] = member.shape if isinstance(member.shape, int) else len(member.shape)
    assert widths == expected


@pytest.mark.parametrize("letter", ["r", "w"])
@pytest.mark.parametrize(("data_bytes", "size"), [(1, 0), (2, 1), (4, 2), (8, 3), (16, 4), (32, 5), (64, 6), (128, 7)])
def test_defaults_describe_plain_bursts(letter: str, data_bytes: int, size: int) -> None:
    """Check whole beats, incrementing, normal non-cacheable bufferable memory, secure unprivileged data."""
    bus = (axi4_read if letter == "r" else axi4_write)(address_bits=32, data_bytes=data_bytes)
    defaults = {name: bus.members[f"a{letter}{name}"].init for name in ("size", "burst", "cache", "prot")}
    assert defaults == {"size": size, "burst": 0b01, "cache": 0b0011, "prot": 0b000}
    assert len(getattr(bus.create(), f"a{letter}id")) == 1
    assert beats_log2(data_bytes) == size


def test_encodings_follow_the_specification() -> None:
    assert {member.name: int(member) for member in Burst} == {"FIXED": 0, "INCR": 1, "WRAP": 2}
    assert {member.name: int(member) for member in Response} == {"OKAY": 0, "EXOKAY": 1, "SLVERR": 2, "DECERR": 3}
    assert BOUNDARY_BYTES == 4096


def test_wrong_data_widths_are_refused() -> None:
    legal = (1, 2, 4, 8, 16, 32, 64, 128)
    for data_bytes in legal:
        check_data_bytes(data_bytes)
    for data_bytes in set(range(-1, 300)) - set(legal):
        with pytest.raises(ValueError, match=rf"^data_bytes must be a power of two, 1 to 128, not {data_bytes}$"):
            check_data_bytes(data_bytes)


def test_bursts_end_at_their_multiples() -> None:
    assert burst_beats(data_bytes=4, max_burst=256) == 256
    assert burst_beats(data_bytes=16, max_burst=256) == 256
    assert burst_beats(data_bytes=32, max_burst=256) == 128
    assert burst_beats(data_bytes=128, max_burst=256) == 32
    assert burst_beats(data_bytes=128, max_burst=1) == 1
    for max_burst in (0, 3, 255, 257, 512):
        with pytest.raises(ValueError, match=rf"^max_burst must be a power of two, 1 to 256, not {max_burst}$"):
            burst_beats(data_bytes=4, max_burst=max_burst)


def test_responses_cannot_be_stalled() -> None:
    assert NUMBER_BITS == 16
    for signature, bits in ((failures(), 18), (completions(), 16)):
        port = signature.create()
        assert len(port.payload if bits == 16 else port.payload.as_value()) == bits
        assert port.ready.value == 1
