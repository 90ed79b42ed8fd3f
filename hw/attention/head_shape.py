"""The shape of heads that attend, which all parts of attention share."""

from dataclasses import dataclass
from functools import cached_property

from edgedec.hw.blocks.pipeline import check
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.kv_layout import KvLayout

__all__ = ["HeadShape"]


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """The heads and rows of an attention, and how many positions it takes at once.

    ``HeadShape(beat_bytes=64, head_dim=96, chunk=16, slots=8, context=1024)`` has groups of 4 positions, of 6 beats each.

    Members:
        beat_bytes, head_dim, chunk: members of the KvLayout, which defines the bytes of a run.
        slots: number of rows, and of own positions, 1 to 8.
        context: largest number of committed positions, 1 to 65536.
        several: whether rows may belong to different sequences, so that each sees a part of the committed positions.
        lanes: positions of each row per cycle of the softmax, 1 to 8; a power of two that divides the positions of a
            group.

    Raises:
        ValueError: a member is out of range, or members contradict each other.
    """

    beat_bytes: int
    head_dim: int
    chunk: int
    slots: int
    context: int
    lanes: int = 1
    several: bool = False

    def __post_init__(self) -> None:
        positions = self.layout.positions
        check("slots", self.slots, 1, 8)
        check("context", self.context, 1, 1 << 16)
        check("lanes", self.lanes, 1, 8)
        if positions % self.lanes:
            raise ValueError(f"lanes must be a power of two that divides {positions}, not {self.lanes!r}")

    @classmethod
    def of(cls, config: AcceleratorConfig) -> "HeadShape":
        """Return the shape that an accelerator has. Positions of several sequences are counted in whole groups."""
        several, layout = config.sequences > 1, config.kv_layout
        return cls(
            beat_bytes=config.beat_bytes,
            head_dim=config.head_dim,
            chunk=config.chunk,
            slots=config.slots,
            context=layout.groups(config.context) * layout.positions if several else config.context,
            lanes=config.softmax_lanes,
            several=several,
        )

    @cached_property
    def layout(self) -> KvLayout:
        """Layout of the keys or values of a head in memory."""
        return KvLayout(beat_bytes=self.beat_bytes, head_dim=self.head_dim, chunk=self.chunk)
