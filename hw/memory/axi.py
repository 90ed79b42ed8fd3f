"""AXI4 and AXI4-Lite signatures with the standard signal names, seen from the manager."""

from enum import IntEnum

from amaranth.hdl import unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, Signature

from edgedec.hw.blocks.pipeline import check

__all__ = [
    "BOUNDARY_BYTES",
    "NUMBER_BITS",
    "Burst",
    "Response",
    "axi4_read",
    "axi4_write",
    "axi_lite",
    "beats_log2",
    "burst_beats",
    "check_data_bytes",
    "completions",
    "failures",
    "requests",
]

BOUNDARY_BYTES = 4096  # AXI: a burst must not cross this boundary
NUMBER_BITS = 16  # bits of a request's number, which counts from 0 after a flush and wraps
_MODIFIABLE_BUFFERABLE = 0b0011  # AxCACHE of normal, non-cacheable memory
_DATA_SECURE_UNPRIVILEGED = 0b000  # AxPROT


class Burst(IntEnum):
    FIXED = 0
    INCR = 1
    WRAP = 2


class Response(IntEnum):
    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


def _check_widths(address_bits: int, data_bytes: int, id_bits: int) -> None:
    check("address_bits", address_bits, 12, 64)
    check_data_bytes(data_bytes)
    check("id_bits", id_bits, 1, 32)


def check_data_bytes(data_bytes: int) -> None:
    """Check a constructor parameter.

    Raises:
        ValueError: AXI4 does not define a data bus of that width.
    """
    if data_bytes not in (1, 2, 4, 8, 16, 32, 64, 128):
        raise ValueError(f"data_bytes must be a power of two, 1 to 128, not {data_bytes!r}")


def _address_channel(letter: str, address_bits: int, data_bytes: int, id_bits: int) -> dict[str, object]:
    size = beats_log2(data_bytes)
    return {
        f"a{letter}id": Out(id_bits),
        f"a{letter}addr": Out(address_bits),
        f"a{letter}len": Out(8),  # beats - 1
        f"a{letter}size": Out(3, init=size),
        f"a{letter}burst": Out(2, init=Burst.INCR),
        f"a{letter}cache": Out(4, init=_MODIFIABLE_BUFFERABLE),
        f"a{letter}prot": Out(3, init=_DATA_SECURE_UNPRIVILEGED),
        f"a{letter}valid": Out(1),
        f"a{letter}ready": In(1),
    }


def axi4_read(*, address_bits: int, data_bytes: int, id_bits: int = 1) -> Signature:
    """Return AR and R of a manager. The init values of the constant fields mean whole beats, INCR bursts, normal
    memory.

    Raises:
        ValueError: AXI4 does not define one of the widths.
    """
    _check_widths(address_bits, data_bytes, id_bits)
    return Signature(
        {
            **_address_channel("r", address_bits, data_bytes, id_bits),
            "rid": In(id_bits),
            "rdata": In(8 * data_bytes),
            "rresp": In(2),
            "rlast": In(1),
            "rvalid": In(1),
            "rready": Out(1),
        }
    )


def axi4_write(*, address_bits: int, data_bytes: int, id_bits: int = 1) -> Signature:
    """Return AW, W and B of a manager, with the same constant fields as ``axi4_read``.

    Raises:
        ValueError: AXI4 does not define one of the widths.
    """
    _check_widths(address_bits, data_bytes, id_bits)
    return Signature(
        {
            **_address_channel("w", address_bits, data_bytes, id_bits),
            "wdata": Out(8 * data_bytes),
            "wstrb": Out(data_bytes),
            "wlast": Out(1),
            "wvalid": Out(1),
            "wready": In(1),
            "bid": In(id_bits),
            "bresp": In(2),
            "bvalid": In(1),
            "bready": Out(1),
        }
    )


def axi_lite(*, address_bits: int) -> Signature:
    """Return all five channels of an AXI4-Lite manager with 32 bits of data; a register block has them as ``In``.

    Raises:
        ValueError: ``address_bits`` is not between 2 and 64.
    """
    check("address_bits", address_bits, 2, 64)
    return Signature(
        {
            "awaddr": Out(address_bits),
            "awprot": Out(3),
            "awvalid": Out(1),
            "awready": In(1),
            "wdata": Out(32),
            "wstrb": Out(4),
            "wvalid": Out(1),
            "wready": In(1),
            "bresp": In(2),
            "bvalid": In(1),
            "bready": Out(1),
            "araddr": Out(address_bits),
            "arprot": Out(3),
            "arvalid": Out(1),
            "arready": In(1),
            "rdata": In(32),
            "rresp": In(2),
            "rvalid": In(1),
            "rready": Out(1),
        }
    )


def beats_log2(data_bytes: int) -> int:
    """Return AxSIZE: the base-2 logarithm of a beat's bytes."""
    return data_bytes.bit_length() - 1


def burst_beats(*, data_bytes: int, max_burst: int) -> int:
    """Return the beats between cuts: bursts end at multiples of it, so that none crosses 4 KiB.

    Raises:
        ValueError: ``max_burst`` is not a power of two from 1 to 256.
    """
    if not 1 <= max_burst <= 256 or max_burst & (max_burst - 1):
        raise ValueError(f"max_burst must be a power of two, 1 to 256, not {max_burst!r}")
    return min(max_burst, BOUNDARY_BYTES // data_bytes)


def requests(address_bits: int, length_bits: int) -> stream.Signature:
    """Return a stream of ranges of memory. A range of 0 bytes is taken and counted, and has no other effect."""
    return stream.Signature(data.StructLayout({"address": address_bits, "bytes": length_bits}))


def failures() -> stream.Signature:
    """Return a stream of responses other than OKAY, each with the number of its request."""
    return stream.Signature(data.StructLayout({"request": NUMBER_BITS, "response": 2}), always_ready=True)


def completions() -> stream.Signature:
    """Return a stream of the numbers of requests of which all bursts were answered."""
    return stream.Signature(unsigned(NUMBER_BITS), always_ready=True)
