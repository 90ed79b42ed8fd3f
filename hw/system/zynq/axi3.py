"""AXI3 signatures with the standard signal names, seen from the manager: as AXI4, with the fields that AXI4 dropped."""

from amaranth.lib.wiring import In, Out, Signature

from edgedec.hw.blocks.pipeline import check
from edgedec.hw.memory.axi import Burst, beats_log2, check_data_bytes

__all__ = ["LONGEST_BURST", "axi3", "axi3_read", "axi3_write"]

LONGEST_BURST = 16  # beats; AxLEN has 4 bits
_MODIFIABLE_BUFFERABLE = 0b0011  # AxCACHE of normal, non-cacheable memory


def _check_widths(address_bits: int, data_bytes: int, id_bits: int) -> None:
    check("address_bits", address_bits, 12, 64)
    check_data_bytes(data_bytes)
    check("id_bits", id_bits, 1, 32)


def _address_channel(letter: str, address_bits: int, data_bytes: int, id_bits: int) -> dict[str, object]:
    return {
        f"a{letter}id": Out(id_bits),
        f"a{letter}addr": Out(address_bits),
        f"a{letter}len": Out(4),  # beats - 1
        f"a{letter}size": Out(3, init=beats_log2(data_bytes)),
        f"a{letter}burst": Out(2, init=Burst.INCR),
        f"a{letter}lock": Out(2),  # 1 exclusive, 2 locked
        f"a{letter}cache": Out(4, init=_MODIFIABLE_BUFFERABLE),
        f"a{letter}prot": Out(3),
        f"a{letter}valid": Out(1),
        f"a{letter}ready": In(1),
    }


def axi3_read(*, address_bits: int, data_bytes: int, id_bits: int) -> Signature:
    """Return AR and R of a manager.

    Raises:
        ValueError: AXI3 does not define one of the widths.
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


def axi3_write(*, address_bits: int, data_bytes: int, id_bits: int) -> Signature:
    """Return AW, W and B of a manager. WID is the id of the burst to which a beat belongs.

    Raises:
        ValueError: AXI3 does not define one of the widths.
    """
    _check_widths(address_bits, data_bytes, id_bits)
    return Signature(
        {
            **_address_channel("w", address_bits, data_bytes, id_bits),
            "wid": Out(id_bits),
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


def axi3(*, address_bits: int, data_bytes: int, id_bits: int) -> Signature:
    """Return all five channels of a manager.

    Raises:
        ValueError: AXI3 does not define one of the widths.
    """
    widths = {"address_bits": address_bits, "data_bytes": data_bytes, "id_bits": id_bits}
    return Signature({**axi3_read(**widths).members, **axi3_write(**widths).members})
