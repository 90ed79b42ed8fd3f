"""The layout of quantized activations between kernels.

A row of ``width`` columns is a sequence of 32-bit words: the int8 codes, four in a word with the first in the lowest bits,
in whole blocks of 64 columns, where codes after the last column are 0; then int32 sums of the codes of each 32 columns,
which matrices need whose codes are stored with an offset. A row has a multiple of 4 words, so that shaders read 16 bytes at
a time.
"""

from __future__ import annotations

__all__ = ["CODE_BLOCK", "code_stride", "code_words"]

CODE_BLOCK = 64  # columns of a block


def code_words(width: int) -> int:
    """Return the words of the codes of a row, without the sums."""
    return -(-width // CODE_BLOCK) * (CODE_BLOCK // 4)


def code_stride(width: int) -> int:
    """Return the words from one row to the next."""
    sums = -(-width // CODE_BLOCK) * (CODE_BLOCK // 32)
    return code_words(width) + -(-sums // 4) * 4
