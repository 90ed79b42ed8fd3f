"""The RTLIL hash of a design, by which a running bitstream says which RTL it was built from.

The hash is the first 64 bits, little-endian, of the SHA-256 of the RTLIL text of the top that is built, with the register of
``edgedec.hw.blocks.stamp`` at zero. It covers everything in that top: a board's memory controller and link as well as
the accelerator; where the rest of the fabric is the maker's, as in a Vivado project, the top is the accelerator.
"""

import hashlib
import re

from edgedec.hw.blocks.stamp import STAMP, STAMP_BITS

__all__ = ["read_stamp", "stamped"]

# Amaranth repeats the attributes of a register on the nets that it drives.
_STAMP = re.compile(
    rf"^(  attribute \\init {STAMP_BITS}')([01]{{{STAMP_BITS}}})(\n  attribute \\{STAMP} 1)$", re.MULTILINE
)


def stamped(text: str) -> str:
    """Return the RTLIL text with its hash as the value of its stamp; unchanged if it has none."""
    zeroed = _with(text, 0)
    digest = hashlib.sha256(zeroed.encode()).digest()
    return _with(zeroed, int.from_bytes(digest[: STAMP_BITS // 8], "little"))


def read_stamp(text: str) -> int:
    """Return the hash that ``stamped`` has written into an RTLIL text; 0 if the text has no stamp."""
    match = _STAMP.search(text)
    return 0 if match is None else int(match[2], 2)


def _with(text: str, value: int) -> str:
    return _STAMP.sub(rf"\g<1>{value:0{STAMP_BITS}b}\g<3>", text)
