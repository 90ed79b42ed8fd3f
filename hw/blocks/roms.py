"""Contents of the ROMs: the tables of docs/integer-profile.md."""

import math
from itertools import pairwise

__all__ = ["CAP_STEP", "CAP_VALUE", "EXP2", "GELU_STEP", "GELU_VALUE", "LAST_EXPONENT", "SIGMOID_STEP", "SIGMOID_VALUE"]

EXP2: tuple[int, ...] = tuple(math.floor(65535 * 2 ** (-i / 256) + 0.5) for i in range(256))  # u16: 65535 * 2^(-i/256)
LAST_EXPONENT = 18 * 256 - 1  # largest exponent with whole part 17; every entry is shifted to zero from there on
# 1 / (1 + exp(-i/16)) in units of 2^-16. SIGMOID_VALUE holds u16 values, SIGMOID_STEP the u11 differences to the next.
_SIGMOID = tuple(min(math.floor(65536 / (1 + math.exp(-i / 16)) + 0.5), 65535) for i in range(257))
SIGMOID_VALUE: tuple[int, ...] = _SIGMOID[:-1]
SIGMOID_STEP: tuple[int, ...] = tuple(b - a for a, b in pairwise(_SIGMOID))
# The same of 1 / (1 + exp(-2 * sqrt(2/pi) * (x + 0.044715 * x^3))) at x = i/32.
_GELU = tuple(
    min(
        math.floor(65536 / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (i / 32 + 0.044715 * (i / 32) ** 3))) + 0.5),
        65535,
    )
    for i in range(257)
)
GELU_VALUE: tuple[int, ...] = _GELU[:-1]
GELU_STEP: tuple[int, ...] = tuple(b - a for a, b in pairwise(_GELU))
# tanh(i / 64) in units of 2^-17, u17, and the u12 differences to the next.
_CAP = tuple(math.floor((1 << 17) * math.tanh(i / 64) + 0.5) for i in range(257))
CAP_VALUE: tuple[int, ...] = _CAP[:-1]
CAP_STEP: tuple[int, ...] = tuple(b - a for a, b in pairwise(_CAP))
