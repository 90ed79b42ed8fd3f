"""Division of a matrix into passes over its codes and sweeps over its row words."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.matrix.code_memory import passes

__all__ = ["MatrixSequencer", "shape", "step"]


def shape(depth: int, *, tied: bool = False) -> data.StructLayout:
    """Return the description of a matrix for the sequencer; all but the flags and ``group_blocks`` are at least 1.

    Members:
        fresh: its codes are a new vector, not those of the matrix before it.
        words: its rows in words of five, the last one padded.
        blocks: its columns in blocks of a beat, the last one padded.
        planes: number of planes that are added.
        group_blocks: blocks of columns that share mantissas; 0 without mantissas.
        int8: it is int8, not ternary; ``planes`` and ``group_blocks`` are ignored.
        tied: the first plane counts three times, unless the matrix is int8 or has mantissas; only if ``tied`` is given.
    """
    blocks = range(depth + 1)
    numbers = {"words": unsigned(16), "blocks": blocks, "planes": unsigned(4), "group_blocks": blocks}
    return data.StructLayout({"fresh": 1, **numbers, "int8": 1, **({"tied": 1} if tied else {})})


def step(tile_words: int, *, tied: bool = False) -> data.StructLayout:
    """Return the layout of one sweep, with the flags of edgedec.hw.matrix.partial_sums.

    ``group_first`` and ``group_last`` mark the first and the last of the blocks that share mantissas; ``int8`` marks a
    step of an int8 matrix, which has five beats per word.
    """
    flags = dict.fromkeys(("first", "final", "scaled", "last", "group_first", "group_last", "int8"), 1)
    flags |= {"tripled": 1} if tied else {}
    return data.StructLayout({"words": range(tile_words + 1), **flags})


class MatrixSequencer(CostedComponent):
    """Iterate over tiles of rows, then planes, then blocks of columns; a step is one sweep over the words of the tile.

    Parameters:
        tile_words: row words of a tile, 1 to 65535; the last tile of a matrix may have fewer.
        depth: largest number of blocks of a matrix, 1 to 65535.
        tied: whether matrices may have tied planes.

    Members:
        matrices: In(stream ``shape(depth, tied=tied)``).
        passes: Out(passes(depth)). One item for each tile and plane, before its first step.
        int8: Out(1). The matrix of the offered pass is int8.
        steps: Out(stream ``step(tile_words, tied=tied)``).

    Latency: 2 cycles from a matrix to its first pass, 3 to its first step.
    Throughput: one step in two cycles, far more than the sweeps need; each matrix costs three more. The comparisons that
        end a pass, a plane and a tile are registers, which follow a step in its second cycle.
    Source: docs/accelerator.md, "The data path".
    """

    def __init__(self, *, tile_words: int, depth: int, tied: bool = False) -> None:
        check("tile_words", tile_words, 1, (1 << 16) - 1)
        check("depth", depth, 1, (1 << 16) - 1)
        self._tile_words, self._depth, self._tied = tile_words, depth, tied
        super().__init__(
            lambda: {
                "matrices": In(stream.Signature(shape(depth, tied=tied))),
                "passes": Out(passes(depth)),
                "int8": Out(1),
                "steps": Out(stream.Signature(step(tile_words, tied=tied))),
            }
        )

    @property
    def resources(self) -> Resources:
        tile_words, depth = self._tile_words, self._depth
        index = (depth - 1).bit_length()
        return Resources(
            lut=2 * index + tile_words.bit_length() + 56,
            ff=shape(depth, tied=self._tied).size + 2 * index + tile_words.bit_length() + 12,
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        now = Signal(shape(self._depth, tied=self._tied))
        out = self.steps.p
        plane = Signal(4)
        block = Signal(range(self._depth))
        in_group = Signal(range(self._depth))
        begun = Signal()
        last_tile = Signal()
        last_plane = Signal()
        last_block = Signal()
        last_of_group = Signal()
        first_sweep = Signal()
        tile = Signal.like(out.words)
        m.d.sync += [
            last_tile.eq(now.words <= self._tile_words),
            tile.eq(Mux(now.words <= self._tile_words, now.words, self._tile_words)),
            last_plane.eq(now.int8 | (plane + 1 == now.planes)),
            last_block.eq(block + 1 == now.blocks),
            last_of_group.eq((block + 1 == now.blocks) | (in_group + 1 == now.group_blocks)),
            first_sweep.eq((plane == 0) & (block == 0)),
        ]
        m.d.comb += [
            self.passes.p.fresh.eq(now.fresh & ~begun),
            self.passes.p.blocks.eq(now.blocks),
            out.words.eq(tile),
            out.first.eq(first_sweep),
            out.final.eq(last_plane & last_block),
            out.last.eq(last_tile),
            out.int8.eq(now.int8),
            self.int8.eq(now.int8),
            out.scaled.eq((now.group_blocks != 0) & ~now.int8),
            out.group_first.eq(in_group == 0),
            out.group_last.eq(last_of_group),
        ]
        if self._tied:
            m.d.comb += out.tripled.eq(now.tied & (plane == 0) & ~now.int8)
        with m.FSM():
            with m.State("idle"):
                m.d.comb += self.matrices.ready.eq(1)
                m.d.sync += [now.eq(self.matrices.payload), begun.eq(0)]
                with m.If(self.matrices.valid):
                    m.next = "pass"
            with m.State("pass"):
                m.d.comb += self.passes.valid.eq(1)
                with m.If(self.passes.ready):
                    m.d.sync += begun.eq(1)
                    m.next = "steps"
            with m.State("steps"):
                m.d.comb += self.steps.valid.eq(1)
                with m.If(self.steps.ready):
                    m.d.sync += [block.eq(block + 1), in_group.eq(Mux(out.group_last, 0, in_group + 1))]
                    m.next = "compare"
                    with m.If(last_block):
                        m.d.sync += [block.eq(0), plane.eq(Mux(last_plane, 0, plane + 1))]
                        m.next = "pass"
                        with m.If(last_plane):
                            m.d.sync += now.words.eq(now.words - self._tile_words)
                            with m.If(last_tile):
                                m.next = "idle"
            with m.State("compare"):
                m.next = "steps"
        return m
