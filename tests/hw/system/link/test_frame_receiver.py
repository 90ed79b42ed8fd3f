"""Compare what is received with the frames of the same bytes in Python."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from amaranth.sim import Simulator

from edgedec.hw.isa.link_protocol import frame, opened
from edgedec.hw.system.link.frame_receiver import FrameReceiver


@dataclass(frozen=True, kw_only=True)
class Received:
    """A frame that was received: its first bytes, the number of those of its content, and the words of its block."""

    code: int
    sequence: int
    head: int
    size: int
    content: int
    block: bytes


def received(wire: bytes, *, granule: int = 4, gap: float = 0.0) -> tuple[list[Received], list[int], list[int]]:
    """Return the frames of some bytes, the cycles in which bytes were taken, and those in which a frame ended."""
    dut, frames = FrameReceiver(granule=granule), list[Received]()
    taken, ends = list[int](), list[int]()

    async def bench(ctx: Any) -> None:
        rng, at, now = random.Random(0), 0, 0
        ctx.set(dut.listening, 1)
        ctx.set(dut.block_enable, 1)
        while at < len(wire) or now < taken[-1] + 5:
            ctx.set(dut.bytes.valid, at < len(wire) and rng.random() >= gap)
            ctx.set(dut.bytes.payload, wire[min(at, len(wire) - 1)])
            _, _, valid, ready, whole = await ctx.tick().sample(dut.bytes.valid, dut.bytes.ready, dut.whole)
            if valid and ready:
                taken.append(now)
                at += 1
            now += 1
            if whole:
                ends.append(now - 1)
                ctx.set(dut.listening, 0)
                ctx.set(dut.bytes.valid, 0)
                await ctx.tick()
                now += 1
                content = int(ctx.get(dut.frame.content))
                block = bytearray()
                for word in range(max(content - 8, 0) // granule):
                    ctx.set(dut.block_address, word)
                    await ctx.tick()
                    now += 1
                    block += int(ctx.get(dut.block)).to_bytes(granule, "little")
                numbers = [int(ctx.get(getattr(dut.frame, name))) for name in ("code", "sequence", "head", "size")]
                names = dict(zip(("code", "sequence", "head", "size"), numbers, strict=True))
                frames.append(Received(**names, content=content, block=bytes(block)))
                ctx.set(dut.listening, 1)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return frames, taken, ends


def check(wire: bytes, *, granule: int = 4, gap: float = 0.0) -> int:
    """Compare with the frames that Python finds in the same bytes, and return their number."""
    contents = [content for piece in wire.split(b"\xc0")[:-1] if (content := opened(piece)) is not None]
    frames, _, _ = received(wire, granule=granule, gap=gap)
    assert [one.content for one in frames] == [len(content) - 2 for content in contents]
    for one, content in zip(frames, contents, strict=True):
        assert (one.code, one.sequence) == (content[0], content[1])
        known = min(len(content) - 2, 8)  # bytes that were not sent keep those of an earlier frame
        mask = (1 << 8 * known) - 1
        assert one.head & mask == int.from_bytes(content[2 : 2 + known], "little")
        if len(content) >= 12:
            assert one.size == int.from_bytes(content[10:12], "little")
        words = max(len(content) - 10, 0) // granule * granule
        assert one.block == content[10 : 10 + words]
    return len(frames)


@pytest.mark.parametrize("granule", [4, 8])
def test_parts_and_blocks_of_frames_are_found(granule: int) -> None:
    rng = random.Random(granule)
    special = bytes([0xC0, 0xDB, 0xDC, 0xDD])
    contents = [b"\x01\x00", b"\x02\xc0" + special, b"\x05\x02" + special * 2 + rng.randbytes(32)]
    contents += [b"\x04\xdb" + rng.randbytes(10)]
    assert check(b"".join(frame(content) for content in contents), granule=granule, gap=0.4) == 4


@pytest.mark.rtl
def test_damaged_frames_are_dropped_and_the_next_is_taken() -> None:
    good = frame(b"\x01\x07")
    damaged = [
        good[:-2] + bytes([good[-2] ^ 1]) + good[-1:],  # a wrong check sum
        b"\xc0\xdb\x00" + good[1:],  # ESCAPE before another byte
        good[:-1] + b"\xdb\xc0",  # ESCAPE before END
        frame(b""),  # four bytes
        frame(b"\x01"),  # five
        b"\xc0\xc0\xc0",  # none
    ]
    wire = b"".join(one + good for one in damaged)
    assert check(wire) == len(damaged)


@pytest.mark.rtl
def test_the_longest_frame_is_taken_and_a_longer_one_is_not() -> None:
    rng = random.Random(1)
    assert check(frame(rng.randbytes(523))) == 1
    assert check(frame(rng.randbytes(524)) + frame(b"\x01\x00")) == 1


def test_latency_and_throughput_are_as_documented() -> None:
    _, taken, ends = received(frame(b"\x01\x00"))
    assert [b - a for a, b in pairwise(taken)] == [4] * (len(taken) - 1)
    assert ends == [taken[-1] + 3]
