"""The host link's frames: docs/uart-link.md. Imports no HDL: a host, a stand-in and the gateware's tests share it."""

import struct
import zlib
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
    "Command",
    "Identity",
    "Status",
    "frame",
    "opened",
]

END, ESCAPE, ESCAPED_END, ESCAPED_ESCAPE = 0xC0, 0xDB, 0xDC, 0xDD
MAGIC = int.from_bytes(b"edlk", "little")
VERSION = 1
BLOCK_BYTES = 512  # of memory in a frame at most
RECEIVE_BYTES = 4096  # of frames, as they are on the wire, that a device keeps while it is busy
IDENTITY = struct.Struct("<IBBBBHHQQI")
MOST_FRAME = 1 + 1 + 8 + BLOCK_BYTES + 1 + 4  # bytes between two END, before any is escaped


class Command(IntEnum):
    """First byte of a frame to the device; its answer's has bit 7 set."""

    IDENTIFY = 1
    READ_REGISTER = 2
    WRITE_REGISTER = 3
    READ_MEMORY = 4
    WRITE_MEMORY = 5
    WAIT = 6


class Status(IntEnum):
    """Last byte of an answer, before its check sum."""

    OK = 0
    COMMAND = 1
    ARGUMENT = 2
    ORDER = 3
    BUS = 4


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a device says of itself.

    Members:
        simulated: its figures are a simulation's.
        granule: addresses and sizes of memory are multiples of it.
        block_bytes, receive_bytes: as BLOCK_BYTES and RECEIVE_BYTES.
        memory_address, memory_bytes: of the memory.
        clock_hz: of the accelerator, and of the cycles of WAIT.
    """

    simulated: bool
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
            0,
            self.block_bytes,
            self.receive_bytes,
            self.memory_address,
            self.memory_bytes,
            self.clock_hz,
        )

    @classmethod
    def unpacked(cls, data: bytes) -> "Identity":
        """Raises:
        DeviceError: it is another device, or of another version, or says what cannot be.
        """
        if len(data) != IDENTITY.size or int.from_bytes(data[:4], "little") != MAGIC:
            raise DeviceError("what answers is no edgedec link; load the board's bitstream")
        _, version, simulated, granule, _, block, receive, address, size, clock = IDENTITY.unpack(data)
        if version != VERSION:
            raise DeviceError(f"the link speaks version {version}, this edgedec {VERSION}; build the bitstream again")
        if granule not in (4, 8, 16) or block % granule or not 0 < block <= BLOCK_BYTES or not clock or not size:
            raise DeviceError(f"the link says of itself what cannot be: {data.hex()}; load the board's bitstream again")
        return cls(
            simulated=bool(simulated),
            granule=granule,
            block_bytes=block,
            receive_bytes=receive,
            memory_address=address,
            memory_bytes=size,
            clock_hz=clock,
        )


def frame(content: bytes) -> bytes:
    """As it goes over the wire: END, content and CRC-32 with END and ESCAPE escaped, END."""
    whole = content + struct.pack("<I", zlib.crc32(content))
    escaped = whole.replace(b"\xdb", b"\xdb\xdd").replace(b"\xc0", b"\xdb\xdc")
    return b"\xc0" + escaped + b"\xc0"


def opened(between: bytes) -> bytes | None:
    """The content of what came between two END, or None: damaged."""
    if between.count(b"\xdb") != between.count(b"\xdb\xdc") + between.count(b"\xdb\xdd"):
        return None
    whole = between.replace(b"\xdb\xdc", b"\xc0").replace(b"\xdb\xdd", b"\xdb")
    if not 6 <= len(whole) <= MOST_FRAME or zlib.crc32(whole[:-4]) != int.from_bytes(whole[-4:], "little"):
        return None
    return whole[:-4]
