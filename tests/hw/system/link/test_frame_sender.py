"""Compare what is sent with the frames that Python makes of the same content."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from edgedec.hw.isa.link_protocol import frame
from edgedec.hw.system.link.frame_sender import CHECK_BYTES, FrameSender, SentKind
from tests.hw.support.bench_streams import run


def items(content: bytes) -> list[dict[str, Any]]:
    return [
        {"kind": SentKind.BEGIN, "byte": 0x55},
        *({"kind": SentKind.BYTE, "byte": byte} for byte in content),
        *({"kind": SentKind.CHECK, "byte": number} for number in range(CHECK_BYTES)),
        {"kind": SentKind.END, "byte": 0x55},
    ]


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.6, 0.0), (0.0, 0.6), (0.3, 0.3)])
def test_frames_equal_those_of_python(idle: float, stall: float) -> None:
    rng = random.Random(4)
    contents = [b"", b"\x81\x00\x00", bytes([0xC0, 0xDB, 0xDC, 0xDD, 0xC0, 0xC0]), rng.randbytes(40)]
    wire = b"".join(map(frame, contents))
    sent = run(
        FrameSender(),
        {"items": [item for content in contents for item in items(content)]},
        {"sent": len(wire)},
        idle=idle,
        stall=stall,
    )["sent"]
    assert bytes(sent) == wire


def test_a_check_sum_with_an_end_is_escaped() -> None:
    """Search a content whose check sum has END and ESCAPE in it."""
    content = next(
        content
        for content in (number.to_bytes(3, "little") for number in range(1 << 24))
        if frame(content)[4:-1].count(b"\xdb\xdc") and frame(content)[4:-1].count(b"\xdb\xdd")
        if not set(content) & {0xC0, 0xDB}
    )
    wire = frame(content)
    assert bytes(run(FrameSender(), {"items": items(content)}, {"sent": len(wire)})["sent"]) == wire


def test_latency_and_throughput_are_as_documented() -> None:
    cycles: dict[str, list[int]] = {}
    content = bytes([1, 0xC0, 2])
    given = items(content)
    run(FrameSender(), {"items": given}, {"sent": len(frame(content))}, cycles=cycles)
    assert cycles["sent"][0] - cycles["items"][0] == 3
    gaps = [b - a for a, b in pairwise(cycles["items"])]
    assert gaps[:4] == [4, 4, 5, 4], "an escaped byte takes a cycle more"
