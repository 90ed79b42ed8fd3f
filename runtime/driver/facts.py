"""The context of a device's figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from edgedec.hw.config import AcceleratorConfig

__all__ = ["DeviceFacts"]


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """The context of a device's figures: what they were taken from, and how.

    Members:
        device: name of the device.
        kind: kind of its cycles and seconds. A device without a clock has no cycles, and its seconds are estimated.
        board: name of the board.
        memory: name of the memory model; empty for a board.
        clock_hz: clock frequency.
        config: configuration of the accelerator.
        live: False for the replay of a recorded session.
    """

    device: str
    kind: Literal["estimated", "simulated", "measured"]
    board: str
    memory: str
    clock_hz: float
    config: AcceleratorConfig
    live: bool = True

    def as_json(self) -> dict[str, Any]:
        """Return the facts for ``timings``."""
        config = self.config
        return {
            "device": self.device,
            "kind": self.kind,
            "board": self.board,
            "memory": self.memory or None,
            "clock_hz": self.clock_hz,
            "clock": "measured" if self.kind == "measured" else "assumed",
            "configuration": {
                "beat_bytes": config.beat_bytes,
                "slots": config.slots,
                "context": config.context,
                "hash": f"{config.hash:016x}",
            },
        }
