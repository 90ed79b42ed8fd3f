"""The frames of the host link (docs/devices.md). Imports no HDL, because host, simulation and gateware tests share it."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from edgedec.errors import DeviceError

__all__ = [
    "BLOCK_BYTES",
    "END",
    "ESCAPE",
    "ESCAPED_END",
    "ESCAPED_ESCAPE",
    "IDENTITY",
    "MAGIC",
    "MOST_FRAME",
    "RECEIVE_BYTES",
    "VERSION",
    "Identity",
    "LinkCommand",
    "RunItem",
    "Status",
    "frame",
    "opened",
    "run_arguments",
    "run_item",
]

END, ESCAPE, ESCAPED_END, ESCAPED_ESCAPE = 0xC0, 0xDB, 0xDC, 0xDD  # bytes of the framing
MAGIC = int.from_bytes(b"edlk", "little")  # first four bytes of an identity
VERSION = 2  # version of the protocol
BLOCK_BYTES = 512  # largest block of memory in a frame, in bytes
RECEIVE_BYTES = 4096  # bytes of frames, as transmitted, that a device queues while it is busy
IDENTITY = struct.Struct("<IBBBBHHQQI")  # layout of an identity
MOST_FRAME = 1 + 1 + 8 + BLOCK_BYTES + 1 + 4  # bytes between two END, before escaping


class LinkCommand(IntEnum):
    """Commands: the first byte of a frame to the device; its answer has bit 7 set."""

    IDENTIFY = 1
    READ_REGISTER = 2
    WRITE_REGISTER = 3
    READ_MEMORY = 4
    WRITE_MEMORY = 5
    WAIT = 6
    RUN = 7


class Status(IntEnum):
    """Results: the last byte of an answer before its check sum."""

    OK = 0
    COMMAND = 1
    ARGUMENT = 2
    ORDER = 3
    BUS = 4
    EXPECTATION = 5


class RunItem(IntEnum):
    """Kinds of items of RUN. The device carries the items out in their order, and ends at the first one that fails."""

    PADDING = 0  # nothing
    READ = 1  # gives ``count`` registers, u32 each
    WRITE = 2  # writes ``count`` registers
    WAIT = 3  # waits as WAIT does, and gives what WAIT gives; a byte that arrives does not end it
    EXPECT = 4  # gives ``count`` registers, u32 each, and ends RUN at the first one that has another value


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The identity that a device reports.

    Members:
        simulated: whether its figures are those of a simulation.
        phases: number of phases at which the memory's data can be captured (BOARD_REGISTER_MAP); 0: it has one.
        granule: unit of memory addresses and sizes in bytes.
        block_bytes, receive_bytes: its BLOCK_BYTES and RECEIVE_BYTES.
        memory_address, memory_bytes: start and size of the memory.
        clock_hz: clock of the accelerator in Hz, which counts the cycles of WAIT.
    """

    simulated: bool
    phases: int = 0
    granule: int
    block_bytes: int = BLOCK_BYTES
    receive_bytes: int = RECEIVE_BYTES
    memory_address: int
    memory_bytes: int
    clock_hz: int

    def packed(self) -> bytes:
        return IDENTITY.pack(
            MAGIC,
            VERSION,
            self.simulated,
            self.granule,
            self.phases,
            self.block_bytes,
            self.receive_bytes,
            self.memory_address,
            self.memory_bytes,
            self.clock_hz,
        )

    @classmethod
    def unpacked(cls, data: bytes) -> "Identity":
        """Return the identity in ``data``.

        Raises:
            DeviceError: it is another device, another version, or an impossible identity.
        """
        if len(data) != IDENTITY.size or int.from_bytes(data[:4], "little") != MAGIC:
            raise DeviceError("what answers is no edgedec link; load the board's bitstream")
        _, version, simulated, granule, phases, block, receive, address, size, clock = IDENTITY.unpack(data)
        if version != VERSION:
            raise DeviceError(f"the link speaks version {version}, this edgedec {VERSION}; build the bitstream again")
        if granule not in (4, 8, 16) or block % granule or not 0 < block <= BLOCK_BYTES or not clock or not size:
            raise DeviceError(f"the link says of itself what cannot be: {data.hex()}; load the board's bitstream again")
        return cls(
            simulated=bool(simulated),
            phases=phases,
            granule=granule,
            block_bytes=block,
            receive_bytes=receive,
            memory_address=address,
            memory_bytes=size,
            clock_hz=clock,
        )


def frame(content: bytes) -> bytes:
    """Return the bytes to transmit: END, content and CRC-32 with END and ESCAPE escaped, END."""
    whole = content + struct.pack("<I", zlib.crc32(content))
    escaped = whole.replace(b"\xdb", b"\xdb\xdd").replace(b"\xc0", b"\xdb\xdc")
    return b"\xc0" + escaped + b"\xc0"


def opened(between: bytes) -> bytes | None:
    """Return the content of the bytes between two END, or None if they are damaged."""
    if between.count(b"\xdb") != between.count(b"\xdb\xdc") + between.count(b"\xdb\xdd"):
        return None
    whole = between.replace(b"\xdb\xdc", b"\xc0").replace(b"\xdb\xdd", b"\xdb")
    if not 6 <= len(whole) <= MOST_FRAME or zlib.crc32(whole[:-4]) != int.from_bytes(whole[-4:], "little"):
        return None
    return whole[:-4]


def run_item(kind: RunItem, offset: int = 0, values: Sequence[int] = (), *, count: int = 0) -> bytes:
    """Return an item of RUN.

    Args:
        offset: byte offset of its first register; the others follow it.
        values: values of WRITE and EXPECT, one for each register; the cycles of WAIT.
        count: registers of READ.
    """
    head = offset // 4 | (count or len(values)) << 16 | kind << 24
    return struct.pack(f"<I{len(values)}I", head, *values)


def run_arguments(items: bytes, granule: int) -> bytes:
    """Return the arguments of RUN: items, and padding up to the bytes that a device of this granule takes."""
    size = max(8, len(items))
    return items.ljust(size + -(size - 8) % granule, b"\0")
