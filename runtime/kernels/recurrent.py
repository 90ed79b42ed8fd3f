"""The recurrent states of sequences, in the slots that the operators of the kernels read and keep their rows in."""

from __future__ import annotations

import numpy as np

from edgedec.onnx.recurrent_layout import RecurrentLayout
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.protocols import F32, I32

__all__ = ["RecurrentBuffer"]


class RecurrentBuffer:
    """A number of slots.

    Members:
        layout: sizes and offsets of the states in a slot.
        slots: float32 [slots, layout.slot_floats], zero at first; pages that no pass has written take no memory.
    """

    def __init__(self, kernels: Kernels, layout: RecurrentLayout, slots: int) -> None:
        self._kernels, self.layout = kernels, layout
        self.slots = np.zeros((slots, layout.slot_floats), np.float32)
        self._numbers = layout.numbers()

    def states(self, slot: int) -> F32:
        """Return the committed states of a slot, float32 [layout.state_floats], as a view."""
        result: F32 = self.slots[slot, : self.layout.state_floats]
        return result

    def commit(self, slot: int, nodes: I32) -> None:
        """Replace the states by those after rows ``nodes`` of the last pass, a path from its root.

        Raises:
            EdgedecError: ``nodes`` do not ascend, or the slots have no such rows.
        """
        nodes = np.ascontiguousarray(nodes, np.int32)
        self._kernels.call(
            "edgedec_recurrent_commit",
            *(self._numbers.ctypes.data, len(self._numbers)),
            *(self.slots[slot].ctypes.data, self.layout.slot_floats, self.layout.rows),
            *(nodes.ctypes.data, len(nodes)),
        )
