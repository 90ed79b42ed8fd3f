"""Random numbers that are a function of seed, sample and position, and of nothing that was drawn before.

A generator with a state returns its numbers in the order in which they are requested, so a text that takes numbers from one
depends on how many were requested: on guesses, trees and batches. Here a number has an address instead. ``PositionRandom``
holds the seed and the index of the sample; t is a token's position, counted from the beginning of the sequence.

The numbers at a position are the output of SplitMix64, started from a key that mixes the address:

    mix(z):  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;  z = (z ^ z >> 27) * 0x94d049bb133111eb;  return z ^ z >> 31
    key    = mix(mix(mix(mix(seed + G) ^ sample) + G ^ t) + G ^ stream)      with G = 0x9e3779b97f4a7c15
    x(i)   = mix(key + (i + 1) * G)                                          all modulo 2**64
    u(i)   = ((x(i) >> 12) + 0.5) / 2**52                                    exact in float64, between 0 and 1

Two streams exist: in ``TOKENS``, i is a token id; in ``DRAWS``, i counts the further draws of a verifier at this position.
The tests hold vectors of x and u for other implementations.

Source: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime.protocols import F32
from edgedec.runtime.sampling import portable_math

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DRAWS", "TOKENS", "Draws", "PositionRandom"]

TOKENS, DRAWS = 0, 1  # streams of a position
_GAMMA = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1

F64 = NDArray[np.float64]


class Draws:
    """The further draws at one position, in order: uniform numbers between 0 and 1."""

    def __init__(self, key: int) -> None:
        self._key, self._count = key, 0

    def random(self) -> float:
        """Return the next one."""
        self._count += 1
        return ((_mix(self._key + self._count * _GAMMA) >> 12) + 0.5) / 2.0**52


@dataclass(frozen=True, kw_only=True)
class PositionRandom:
    """The random numbers of one text.

    Members:
        seed: 0 to 2**64 - 1.
        sample: the index among several texts of one prompt.
    """

    seed: int
    sample: int = 0

    @classmethod
    def seeded(cls, seed: int, sample: int = 0) -> Self:
        """Return the numbers of ``seed``; -1 takes a seed from the system, another one each time."""
        return cls(seed=int.from_bytes(os.urandom(8), "little") if seed < 0 else seed & _MASK, sample=sample)

    def key(self, position: int, stream: int) -> int:
        """Return the key of a position's stream, an integer of 64 bits."""
        key = _mix(self.seed + _GAMMA) ^ self.sample
        key = _mix(key) + _GAMMA & _MASK ^ position
        return _mix(_mix(key) + _GAMMA & _MASK ^ stream)

    def uniforms(self, position: int, ids: NDArray[np.integer]) -> F64:
        """Return u of token ids [n] at a position, float64 [n], between 0 and 1 without them."""
        z = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA) + np.uint64(self.key(position, TOKENS))
        z = (z ^ z >> np.uint64(30)) * np.uint64(_FIRST)
        z = (z ^ z >> np.uint64(27)) * np.uint64(_SECOND)
        z ^= z >> np.uint64(31)
        result: F64 = ((z >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return result

    def draws(self, position: int) -> Draws:
        """Return the further draws at a position, from their first on."""
        return Draws(self.key(position, DRAWS))

    def token(self, probs: F32 | F64, position: int) -> int:
        """Return the token at a position: a draw from ``probs`` [V], at least one of them above 0.

        Each token has a waiting time, exponentially distributed with its probability as rate, and the token with the
        shortest comes; of equal ones the lowest id. This is the largest of log p plus a Gumbel number. Whoever knows
        something like ``probs`` can tell the likely winner from the same numbers: that is how guesses are chosen.

        Source: the Gumbel-max trick, C. J. Maddison, D. Tarlow, T. Minka, "A* Sampling", NIPS 2014; its use as a coupling
        of target and draft, 2408.07978.
        """
        ids = np.flatnonzero(probs)
        if len(ids) == 1:
            return int(ids[0])
        waits = -portable_math.log(self.uniforms(position, ids)) / probs[ids].astype(np.float64)
        return int(ids[waits.argmin()])


def _mix(z: int) -> int:
    z &= _MASK
    z = (z ^ z >> 30) * _FIRST & _MASK
    z = (z ^ z >> 27) * _SECOND & _MASK
    return z ^ z >> 31
