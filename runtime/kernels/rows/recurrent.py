"""The recurrent states of sequences, in the slots that the operators of the kernels read and keep their rows in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgedec.onnx.recurrent_layout import RecurrentLayout
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.protocols import F32, I32

__all__ = ["RecurrentBuffer"]


class RecurrentBuffer:
    """A number of slots.

    Parameters:
        weight: returns the float32 array of a weight of the graph, from which the tables are made.

    Members:
        layout: sizes and offsets of the states in a slot.
        memory: float32 [layout.table_floats + slots * layout.slot_floats], the tables and then the slots.
        slots: float32 [slots, layout.slot_floats], zero at first, a view; pages that no pass has written take no memory.
    """

    def __init__(self, kernels: Kernels, layout: RecurrentLayout, slots: int, weight: Callable[[str], F32]) -> None:
        self._kernels, self.layout = kernels, layout
        self.memory = np.zeros(layout.table_floats + slots * layout.slot_floats, np.float32)
        self._tables = self.memory[: layout.table_floats]
        self._tables[...] = layout.tables(weight)
        self.slots = self.memory[layout.table_floats :].reshape(slots, -1)
        self._numbers = layout.numbers()

    def states(self, slot: int) -> F32:
        """Return the committed states of a slot, float32 [layout.state_floats], as a view."""
        result: F32 = self.slots[slot, : self.layout.state_floats]
        return result

    def commit_arguments(self) -> dict[str, Any]:
        """Return the address of ``edgedec_recurrent_commit`` and its arguments, by their names in the compiled loop."""
        return {
            "commit": self._kernels.address("edgedec_recurrent_commit"),
            "state_numbers": self._numbers.ctypes.data,
            "state_count": len(self._numbers),
            "states": self.memory.ctypes.data,
            "table_floats": self.layout.table_floats,
            "slot_floats": self.layout.slot_floats,
            "slot_rows": self.layout.rows,
            "slot_count": len(self.slots),
        }

    def commit(self, slot: int, nodes: I32) -> None:
        """Replace the states by those after rows ``nodes`` of the last pass, a path from its root.

        Raises:
            EdgedecError: ``nodes`` do not ascend, or the slots have no such rows.
        """
        nodes = np.ascontiguousarray(nodes, np.int32)
        self._kernels.call(
            "edgedec_recurrent_commit",
            *(self._numbers.ctypes.data, len(self._numbers)),
            *(self._tables.ctypes.data, len(self._tables)),
            *(self.slots[slot].ctypes.data, self.layout.slot_floats, self.layout.rows),
            *(nodes.ctypes.data, len(nodes)),
        )
