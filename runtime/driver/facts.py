"""The facts of a device that its figures are read with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from edgedec.hw.config import AcceleratorConfig

__all__ = ["DeviceFacts"]


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """What figures of a device have to be read with.

    Members:
        device, board: names. ``memory``: the model of it; empty on a board.
        kind: of cycles and seconds. A device without a clock has no cycles, and its seconds are estimated.
        live: the device is at work now; false of a session that is replayed.
    """

    device: str
    kind: Literal["estimated", "simulated", "measured"]
    board: str
    memory: str
    clock_hz: float
    config: AcceleratorConfig
    live: bool = True

    def as_json(self) -> dict[str, Any]:
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
