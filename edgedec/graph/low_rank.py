"""The basis in which a policy stores keys: few directions of each key/value head, found by a calibration."""

from __future__ import annotations

import base64
import binascii
import reprlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["KeyBasis"]

MOST_RANK = 512  # the most dimensions of a head
_NUMBER = np.dtype("<f2")


@dataclass(frozen=True, kw_only=True)
class KeyBasis:
    """The directions of each key/value head, in which its keys are stored before their rotation.

    A stored number is the product of a key and a direction: number[r] is the sum over the dimensions, in order, of key *
    direction, each product and each sum rounded to float32. A rebuilt key is the sum over the numbers, in order, of number *
    direction. Source: 2410.21465 (ShadowKV), which takes the directions from the prompt.

    Members:
        rank: numbers of a stored key, even.
        directions: float16, little-endian, [kv_heads, rank, head_dim].

    Raises:
        UnsupportedError: the rank is out of range, or a direction is not finite.
    """

    rank: int
    directions: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if type(self.rank) is not int or not 2 <= self.rank <= MOST_RANK or self.rank % 2:
            raise UnsupportedError(
                f"rank of stored keys must be even, 2 to {MOST_RANK}, not {reprlib.repr(self.rank)}; calibrate again"
            )
        size = _NUMBER.itemsize * self.rank
        if not self.directions or len(self.directions) % size:
            raise UnsupportedError(
                f"directions of stored keys must be rows of {size} bytes, not {len(self.directions)}; calibrate again"
            )
        if not np.isfinite(np.frombuffer(self.directions, _NUMBER)).all():
            raise UnsupportedError("directions of stored keys must be finite numbers; calibrate again")

    @classmethod
    def of(cls, directions: NDArray[Any]) -> Self:
        """Return the basis of directions [kv_heads, rank, head_dim]."""
        return cls(rank=directions.shape[1], directions=np.ascontiguousarray(directions, _NUMBER).tobytes())

    @classmethod
    def from_json(cls, rank: Any, text: Any) -> Self:
        """Return the basis of an entry of a configuration: its rank, and the directions as base64.

        Raises:
            BundleError: the text is not base64.
            UnsupportedError: see the class.
        """
        try:
            directions = base64.b64decode(text, validate=True)
        except (TypeError, ValueError, binascii.Error) as error:
            raise BundleError(
                f"configuration: directions of stored keys must be base64, not {reprlib.repr(text)}; calibrate again"
            ) from error
        return cls(rank=rank, directions=directions)

    def to_text(self) -> str:
        """Return the directions as base64."""
        return base64.b64encode(self.directions).decode()

    def check_heads(self, kv_heads: int, head_dim: int, state: str) -> None:
        """Check that the directions are those of heads of this size.

        Raises:
            UnsupportedError: they are not; the message names the state.
        """
        if self.rank > head_dim:
            raise UnsupportedError(
                f"state {state}: a rank of {self.rank} is more than the {head_dim} dimensions of a head"
            )
        if len(self.directions) != _NUMBER.itemsize * kv_heads * self.rank * head_dim:
            raise UnsupportedError(f"state {state}: the directions of keys are not for {kv_heads} heads of {head_dim}")

    def array(self, kv_heads: int) -> NDArray[np.float32]:
        """Return the directions, float32 [kv_heads, rank, head_dim]."""
        return np.frombuffer(self.directions, _NUMBER).astype(np.float32).reshape(kv_heads, self.rank, -1)
