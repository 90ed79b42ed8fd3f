"""A list of instructions under construction, each with the name of its result, and the image that they read."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.compiler.constants import beats_of, item_bytes
from edgedec.hw.compiler.memory_image import REGION_BYTES, MemoryImage
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Base, Destination, Instruction, Opcode, When

__all__ = ["ProgramEmitter"]

_MOST_BEATS = (1 << 24) - 1  # beats of one READ


class ProgramEmitter:
    """Instructions and their image.

    Args:
        region_bytes: most bytes of the image that one READ has, so that the image can be divided into such regions.

    Members:
        when: passes in which the instructions emitted from now on are executed.
        instructions, names: emitted instructions, and a name for each.
    """

    def __init__(self, config: AcceleratorConfig, region_bytes: int = REGION_BYTES) -> None:
        self._most = {Base.IMAGE: min(_MOST_BEATS, region_bytes // config.beat_bytes), Base.INPUT: _MOST_BEATS}
        self.config, self.image = config, MemoryImage(config.beat_bytes)
        self.when = When.ALWAYS
        self.instructions: list[Instruction] = []
        self.names: list[str] = []
        self.input_beats = 0

    def emit(self, opcode: Opcode, name: str, *, when: int | None = None, **fields: int) -> None:
        """Append an instruction; fields that are zero are omitted."""
        members = {"when": int(self.when if when is None else when), **fields}
        self.instructions.append(Instruction(opcode, {key: value for key, value in members.items() if value}))
        self.names.append(name)

    def constants(self, destination: Destination, name: str, items: NDArray[np.uint8]) -> None:
        """Add a table of items to the image, and emit its READ."""
        beats, spare = beats_of(len(items), item_bytes(destination, self.config), self.config.beat_bytes)
        self._read(Base.IMAGE, destination, name, self.image.add(beats, lambda: items), beats, spare)

    def weights(self, name: str, beats: int, make: Callable[[], NDArray[np.uint8]]) -> None:
        """Add a matrix to the image, built together with it, and emit its READ."""
        self._read(Base.IMAGE, Destination.WEIGHTS, name, self.image.add(beats, make), beats, 0)

    def input(self, destination: Destination, name: str, items: int, *, start: int | None = None) -> int:
        """Emit the READ of ``items`` items of the input buffer, which are appended to it unless they have a place there.

        Args:
            start: the first beat of items that an earlier call appended.

        Returns:
            the first beat of the items.
        """
        beats, spare = beats_of(items, item_bytes(destination, self.config), self.config.beat_bytes)
        if start is None:
            start, self.input_beats = self.input_beats, self.input_beats + beats
        self._read(Base.INPUT, destination, name, start, beats, spare)
        return start

    def _read(self, base: Base, destination: Destination, name: str, start: int, beats: int, spare: int) -> None:
        while beats:
            part = min(beats, self._most[base])
            fields = {"destination": int(destination), "base": int(base), "start": start, "beats": part}
            self.emit(Opcode.READ, name, **fields, spare=spare if part == beats else 0)
            start, beats = start + part, beats - part
