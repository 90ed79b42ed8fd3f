"""The selection of the keys that a query attends to, by a few channels of each key.

The label of a key is a function of the stored key alone, so that a text does not depend on how its rows were computed.
``reference/float_profile/selection.py`` defines the choice, and attention_select.cpp of the CPU kernels computes the same
bits.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass

from edgedec.errors import UnsupportedError

__all__ = ["LABEL_BITS", "MOST_KEYS", "Selection"]

LABEL_BITS = (8, 4)  # supported bits of a code of a label
MOST_KEYS = 1 << 24  # limit on the numbers of keys, the most positions of a cache
_PARTS = 1 << 16  # parts of a share
_MOST_WEIGHT = 1e30  # limit on steps and weights


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Each query attends to at most ``count(n)`` of the n keys that it sees.

    The first ``sinks`` and the last ``recent`` of these are always among them, in the order in which the query sees them.
    The others are those of the largest scores. Source: 2408.07092 (Double Sparsity).

    Members:
        keys: least number of keys that a query attends to, if it sees as many; more than sinks and recent ones.
        sinks, recent: numbers of keys.
        channels: for each key/value head the channels of a label, all in the same number; they may be in any order, in which
            products are added.
        steps: for each key/value head the step of each channel's codes, positive.
        bits: bits of a code, see ``LABEL_BITS``.
        share: share of the keys that a query sees, to which it attends if they are more than ``keys``.
        kept: number of the chosen keys that are those of the largest importance, whatever the query; of equal ones the
            earliest. The others are then chosen by their scores. So of these keys one changes at most with each key.
        importance: with ``kept`` for each key/value head an offset, and a weight for each dimension. The importance of a key
            is the offset plus, in order, each weight times the square of the element, rounded to a code of -127 to 127.
            Source: 2510.13602 (NOSA), which trains it.

    Raises:
        UnsupportedError: a number or a list is out of range.
    """

    keys: int
    sinks: int
    recent: int
    channels: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[float, ...], ...]
    bits: int = 8
    share: float = 0.0
    kept: int = 0
    importance: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        for name, value, least in (("keys", self.keys, 1), ("sinks", self.sinks, 0), ("recent", self.recent, 1)):
            if type(value) is not int or not least <= value <= MOST_KEYS:
                raise UnsupportedError(
                    f"{name} of a selection must be {least} to {MOST_KEYS}, not {reprlib.repr(value)}; calibrate again"
                )
        if self.keys <= self.sinks + self.recent:
            raise UnsupportedError(
                f"a selection of {self.keys} keys leaves none to choose beside {self.sinks} sinks and {self.recent} recent "
                "ones; calibrate again with more --keys"
            )
        if type(self.bits) is not int or self.bits not in LABEL_BITS:
            raise UnsupportedError(f"bits of labels must be 8 or 4, not {reprlib.repr(self.bits)}")
        if type(self.share) not in (int, float) or not 0 <= self.share <= 1:
            raise UnsupportedError(f"share of a selection must be 0 to 1, not {reprlib.repr(self.share)}")
        if type(self.kept) is not int or not 0 <= self.kept <= self.keys - self.sinks - self.recent:
            raise UnsupportedError(
                f"kept keys of a selection must be 0 to {self.keys - self.sinks - self.recent}, those that are chosen, not "
                f"{reprlib.repr(self.kept)}"
            )
        self._check_lists()

    def _check_lists(self) -> None:
        widths = {len(own) for own in (*self.channels, *self.steps)}
        if len(self.channels) != len(self.steps) or len(widths) != 1 or 0 in widths:
            raise UnsupportedError(
                "channels and steps of a selection must have as many numbers for each key/value head, at least one"
            )
        for own in self.channels:
            if any(type(channel) is not int or channel < 0 for channel in own) or len(set(own)) < len(own):
                raise UnsupportedError(f"channels of a label must be different numbers, not {reprlib.repr(list(own))}")
        for steps in self.steps:
            if any(type(step) not in (int, float) or not 0 < step < _MOST_WEIGHT for step in steps):
                raise UnsupportedError(f"steps of a label must be positive, not {reprlib.repr(list(steps))}")

        if len(self.importance) != (len(self.channels) if self.kept else 0):
            raise UnsupportedError(
                "importance of a selection must have a list for each key/value head if keys are kept"
            )
        for weights in self.importance:
            if any(type(number) not in (int, float) or not abs(number) < _MOST_WEIGHT for number in weights):
                raise UnsupportedError(
                    f"importance of a selection must be finite numbers, not {reprlib.repr(list(weights))}"
                )

    def check_heads(self, kv_heads: int, head_dim: int, state: str) -> None:
        """Check that the labels are those of heads of this size.

        Raises:
            UnsupportedError: they are not; the message names the state.
        """
        if len(self.channels) != kv_heads:
            raise UnsupportedError(
                f"state {state}: has {kv_heads} key/value heads, and the selection is for {len(self.channels)}"
            )
        width = len(self.channels[0])
        if width > head_dim:
            raise UnsupportedError(f"state {state}: a label cannot have {width} channels, its heads have {head_dim}")
        if outside := [channel for own in self.channels for channel in own if channel >= head_dim]:
            raise UnsupportedError(f"state {state}: there is no channel {outside[0]}; its heads have {head_dim}")
        if wrong := [len(weights) for weights in self.importance if len(weights) != 1 + head_dim]:
            raise UnsupportedError(
                f"state {state}: importance must have {1 + head_dim} numbers for each head, not {wrong[0]}"
            )

    @property
    def parts(self) -> int:
        """The share in 65536ths, with which numbers of keys are computed."""
        return round(self.share * _PARTS)

    @property
    def label_bytes(self) -> int:
        """Bytes of the label of one key and head, a multiple of 4."""
        codes = -(-len(self.channels[0]) * self.bits // 8)
        return -(-(codes + (1 if self.kept else 0)) // 4) * 4

    def count(self, visible: int) -> int:
        """Return the number of keys, of ``visible`` ones, to which a query attends at most."""
        return max(self.keys, visible * self.parts // _PARTS)

    def largest(self, positions: int) -> int:
        """Return the most keys to which a query attends in a sequence of ``positions``."""
        return min(positions, self.count(positions))
