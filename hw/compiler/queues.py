"""The entries that a program needs in the accelerator's queues, so that none of them ever stops the read stream.

All data arrives in one stream. A constant that finds its queue full would stop the stream, and if its unit waits for data
behind it, for ever. This cannot happen if every queue holds all items that may have arrived while their unit still waits
for a later part of the stream. The items are counted here, instruction by instruction, without regard to speed: an item
counts from its READ until everything in the stream has arrived that its unit needs to take it.

- A gain is taken once the matrix, the attention or the rows that make its vector have arrived, that of a norm of heads
  or of rows with the last piece of the matrix. Gains of a vector whose rows are normed first arrive after that piece.
- A row's constants are taken once the weights of its piece have arrived, the constants of codes with the last piece.
- Factors and scales are taken once the keys and values of the layer have arrived.
- A VECTOR leaves its queue when its vector is complete, a MATRIX once its weights have arrived.

Source: derived here, from the order of instructions in docs/accelerator.md, "Programs".
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from edgedec.errors import UnsupportedError
from edgedec.hw.compiler.constants import item_bytes
from edgedec.hw.config import MATRICES_AHEAD, VECTORS_AHEAD, AcceleratorConfig, constant_queues
from edgedec.hw.isa.instructions import Destination, Instruction, Opcode, Sink, Source, When

__all__ = ["check_queues", "queue_needs", "queue_sizes"]

_QUEUED = {name.upper(): name for name in ("gains", "rows", "coding", "factors", "scales")}
_PARTS = (Sink.QUERIES, Sink.KEYS, Sink.VALUES)
_REMEDIES: Mapping[str, str] = {
    "gains": "raise width or hidden",
    "rows": "raise tile_rows",
    "coding": "raise heads",
    "factors": "raise heads",
    "scales": "raise heads",
}


def queue_sizes(config: AcceleratorConfig) -> Mapping[str, int]:
    """Return the entries of each queue of an accelerator."""
    return {**constant_queues(config), "vectors": VECTORS_AHEAD, "matrices": MATRICES_AHEAD}


def queue_needs(instructions: Iterable[Instruction], config: AcceleratorConfig) -> Mapping[str, int]:
    """Return the largest number of entries that a pass needs in each queue of ``queue_sizes``, with or without logits."""
    program = tuple(instructions)
    walks = [_Walk(config), _Walk(config)]
    for walk, skipped in zip(walks, (When.WITHOUT_LOGITS, When.WITH_LOGITS), strict=True):
        for instruction in program:
            if instruction["when"] != skipped:
                walk.step(instruction)
    return {name: max(walk.most[name] for walk in walks) for name in queue_sizes(config)}


def check_queues(instructions: Iterable[Instruction], config: AcceleratorConfig) -> None:
    """Check that an accelerator's queues exclude that a program stops its read stream for ever.

    Raises:
        UnsupportedError: a queue is too small; the message names it, its size, the need and a remedy.
    """
    sizes = queue_sizes(config)
    for name, need in queue_needs(instructions, config).items():
        if need > sizes[name]:
            remedy = _REMEDIES.get(name, "announce fewer of them ahead of their data")
            raise UnsupportedError(
                f"the program needs a queue of {need} {name}; this accelerator has one of {sizes[name]}, which could stop "
                f"the read stream for ever: {remedy}"
            )


@dataclass(kw_only=True)
class _Vector:
    """An announced vector, and the gains that have arrived for it."""

    source: int
    gains: int = 0


@dataclass
class _Walk:
    """The walk through a pass.

    Members:
        waiting: entries of each queue that may not have been taken.
        most: largest such numbers so far.
        vectors: announced vectors that are not complete.
        matrix: MATRIX whose weights are arriving.
        heads: gains of its norm of heads or of rows.
        fed: the weights of its last piece have arrived.
    """

    config: AcceleratorConfig
    waiting: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    vectors: list[_Vector] = field(default_factory=list)
    matrix: Instruction | None = None
    heads: int = 0
    fed: bool = False

    def step(self, instruction: Instruction) -> None:
        if instruction.opcode == Opcode.READ:
            self._read(instruction)
            return
        if self.matrix is not None:
            self._end_matrix(self.matrix)
        if instruction.opcode == Opcode.VECTOR:
            self.vectors.append(_Vector(source=instruction["source"]))
            self._add("vectors", 1)
        elif instruction.opcode == Opcode.MATRIX:
            self.matrix, self.fed = instruction, False
            self._add("matrices", 1)
        elif instruction.opcode == Opcode.CACHE:
            self.waiting["factors"] = self.waiting["scales"] = 0
            self._complete(Source.ATTENTION)

    def _read(self, instruction: Instruction) -> None:
        destination, config = Destination(instruction["destination"]), self.config
        if destination == Destination.LOAD:
            self._complete(Source.LOAD)
        if destination == Destination.WEIGHTS and self.matrix is not None:
            self.fed = not self.matrix["more"]
        name = _QUEUED.get(destination.name)
        if name is None:
            return
        items = instruction["beats"] * config.beat_bytes // item_bytes(destination, config) - instruction["spare"]
        if destination == Destination.GAINS and self.fed:
            self._release_gains()
        if destination == Destination.GAINS and self.matrix is not None and not self.fed:
            self.heads += items
        elif destination == Destination.GAINS and self.vectors:
            self.vectors[-1].gains += items
        self._add(name, items)

    def _add(self, name: str, items: int) -> None:
        self.waiting[name] += items
        self.most[name] = max(self.most[name], self.waiting[name])

    def _end_matrix(self, matrix: Instruction) -> None:
        """Release what waited for the weights of a piece, and for the vector that its last piece completes."""
        self.matrix = None
        self.waiting["matrices"] -= 1
        self.waiting["rows"] = 0
        if matrix["more"]:
            return
        self.fed = False
        self._release_gains()
        if matrix["sink"] in _PARTS:
            self.waiting["coding"] = 0
        if matrix["sink"] == Sink.GATE:
            self._complete(Source.GATE)
        if matrix["sink"] == Sink.RESIDUAL and matrix["onward"]:
            self._complete(Source.RESIDUAL)

    def _release_gains(self) -> None:
        """Release the gains of the norm of the matrix."""
        self.waiting["gains"] -= self.heads
        self.heads = 0

    def _complete(self, source: Source) -> None:
        """Release the first announced vector of a source, if there is one, with its gains."""
        for vector in self.vectors:
            if vector.source == source:
                self.vectors.remove(vector)
                self.waiting["vectors"] -= 1
                self.waiting["gains"] -= vector.gains
                return
