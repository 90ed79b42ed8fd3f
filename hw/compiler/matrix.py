"""A matrix for the accelerator: one or two matrices of the profile, rows in the hardware's order, divided into pieces."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.graph.ops import Linear, Operation
from edgedec.hw.compiler import int8_image, ternary_image
from edgedec.hw.compiler.int8_image import Int8Layout
from edgedec.hw.compiler.row_constants import pack_rows
from edgedec.hw.compiler.ternary_image import TernaryLayout
from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.reference.integer_profile.ops.linear import MatrixConstants
from edgedec.schemes import TernaryScheme

__all__ = ["Matrix", "unsupported"]

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

_BASE_BITS = 9  # bits of an instruction's base
_MOST_WORDS = (1 << 16) - 1  # words of five rows, limited by an instruction's field
_TAIL_WORDS = (
    16  # words of the last tile; a sweep must last as long as the tables of edgedec.hw.matrix.lookup_engine take
)


def unsupported(op: Operation, reason: str) -> UnsupportedError:
    """Return the error of an operation that the accelerator cannot run.

    ``reason`` ends with a remedy; the operation's name contains the layer.
    """
    return UnsupportedError(f"the accelerator cannot run {op.kind} {op.name}: {reason}")


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One or two matrices of a linear as the accelerator multiplies them.

    Members:
        op: the linear, for messages.
        parts: one matrix, or two whose rows alternate: row 2 i is row i of the first, row 2 i + 1 row i of the second.
        group_size: columns that share mantissas; 0 without mantissas.
        order: order of the rows of a single part; None keeps it.
    """

    op: Linear
    parts: tuple[MatrixConstants, ...]
    group_size: int
    order: I64 | None = None

    @classmethod
    def of(
        cls, op: Linear, indices: Sequence[int], constants: Sequence[MatrixConstants], order: I64 | None = None
    ) -> "Matrix":
        """Return the matrices of an operation with these indices.

        Raises:
            UnsupportedError: two of them are stored or drained in different ways.
        """
        parts = tuple(constants[index] for index in indices)
        sizes = [scheme.group_size if isinstance(scheme, TernaryScheme) else 0 for scheme in op.schemes]
        ways = {
            (
                part.weight.shape,
                None if part.trits is None else part.trits.shape[0],
                sizes[index],
                part.groups is None,
                part.scale.values.size > 1,
            )
            for index, part in zip(indices, parts, strict=True)
        }
        if len(ways) > 1:
            names = " and ".join(part.name for part in parts)
            raise unsupported(op, f"{names} are not stored alike; quantize both with the same method and options")
        shifts = {part.pre_shift for part in parts}
        if len(shifts) > 1:
            raise unsupported(
                op, f"sums of {parts[0].name} and {parts[1].name} need different shifts; quantize with narrower layers"
            )
        return cls(op=op, parts=parts, group_size=sizes[indices[0]], order=order)

    @property
    def rows(self) -> int:
        return sum(len(part.weight) for part in self.parts)

    @property
    def columns(self) -> int:
        result: int = self.parts[0].weight.shape[1]
        return result

    @property
    def int8(self) -> bool:
        return self.parts[0].trits is None

    @property
    def planes(self) -> int:
        return 1 if self.parts[0].trits is None else len(self.parts[0].trits)

    @property
    def tied(self) -> bool:
        """True if the trits of two planes are digits, of which the first count three times."""
        return self.parts[0].rough and self.planes == 2

    @property
    def pair(self) -> bool:
        return len(self.parts) == 2

    @property
    def row_weights(self) -> bool:
        """True if each row has its own mantissa."""
        return self.parts[0].scale.values.size > 1

    @property
    def row_constants(self) -> bool:
        """True if some constant differs from row to row."""
        return self.row_weights or any(part.bias is not None or np.any(part.row_shift) for part in self.parts)

    def check(self, config: AcceleratorConfig) -> None:
        """Check that a configuration can run the matrix.

        Raises:
            UnsupportedError: it cannot.
        """
        if self.columns > config.width:
            raise unsupported(
                self.op, f"it is {self.columns} columns wide; this accelerator has width={config.width}, raise it"
            )
        if (self.int8 or self.row_weights) and not config.per_row:
            raise unsupported(
                self.op, "it is int8, and its rows have a scale each; generate the accelerator with per_row=True"
            )
        if self.group_size and not config.scaling:
            raise unsupported(
                self.op,
                f"its weights are planes with groups of {self.group_size}; generate the accelerator with scaling=True",
            )
        if self.group_size % config.beat_bytes:
            raise unsupported(
                self.op,
                f"groups of {self.group_size} columns end within a beat of {config.beat_bytes} bytes; quantize with "
                f"--group-size {config.beat_bytes} or a multiple of it, or generate it with a narrower beat_bytes",
            )
        if -(-self.rows // ROWS) > _MOST_WORDS:
            raise unsupported(self.op, f"it has {self.rows} rows; an instruction holds at most {_MOST_WORDS * ROWS}")
        if self.pair and self.row_constants and config.tile_words < 2:
            raise unsupported(
                self.op, f"rows of two matrices alternate, a tile has {config.tile_rows}; raise tile_rows to 10 or more"
            )

    def pieces(self, tile_words: int, *, urgent: bool = False) -> list[slice]:
        """Divide the rows into pieces that keep pairs together; row constants of a piece must fit the queue of a tile.

        ``urgent``: another step waits for the last row. Rows leave a tile one by one or more slowly, and while those of
            the last
        tile leave, no other work remains, so that tile is short. Rows with constants leave during the next tile, hence
        each of their last tiles is half as long as the one before.
        """
        step = 2 if self.pair else 1
        left, most = -(-self.rows // ROWS), tile_words - tile_words % step
        sizes: list[int] = []
        if self.row_constants:
            size = _TAIL_WORDS
            while urgent and size < most and left > 2 * size:
                sizes.insert(0, size)
                left, size = left - size, 2 * size
            if sizes and left % step:
                sizes[-1], left = sizes[-1] + 1, left - 1  # the odd word goes last, or a pair would be divided
            sizes = [*(min(most, left - at) for at in range(0, left, most)), *sizes]
        else:
            cut = left - _TAIL_WORDS
            # Words of a tile that is too short for its tables.
            short = cut % tile_words if cut % tile_words < _TAIL_WORDS else 0
            cut -= short + (cut - short) % step
            # int8 rows do not arrive faster than they are drained.
            sizes = [cut, left - cut] if urgent and not self.int8 and cut > 0 else [left]
        ends = [min(ROWS * end, self.rows) for end in accumulate(sizes)]
        return [slice(start, end) for start, end in pairwise([0, *ends])]

    def fields(self, piece: slice, config: AcceleratorConfig) -> dict[str, int]:
        """Return the fields of a piece's MATRIX instruction: its shape and its drain settings."""
        limit, blocks = 1 << (_BASE_BITS - 1), -(-self.columns // config.beat_bytes)
        result = {
            "int8": int(self.int8),
            "words": -(-(piece.stop - piece.start) // ROWS),
            "spare": (piece.start - piece.stop) % ROWS,
            "blocks": blocks,
            "planes": self.planes,
            "group_blocks": min(self.group_size // config.beat_bytes, blocks),  # a group may be wider than the matrix
            "pre_shift": self.parts[0].pre_shift,
            "pair": int(self.pair),
            "rows": int(self.row_constants),
            "tied": int(self.tied),
        }
        for index, part in enumerate(self.parts):
            result[f"base{index}"] = max(-limit, min(limit - 1, part.base))
            result[f"weight{index}"] = 0 if self.row_weights else int(part.scale.values[0])
        return result

    def beats(self, piece: slice, config: AcceleratorConfig) -> int:
        """Return the beats of the image of a piece's weights."""
        return self._layout(piece, config).beats

    def weights(self, piece: slice, config: AcceleratorConfig) -> U8:
        """Return the image of a piece's weights, uint8 [beats, beat_bytes]."""
        layout = self._layout(piece, config)
        if isinstance(layout, Int8Layout):
            return int8_image.pack(layout, self._picked([part.weight for part in self.parts], piece).astype(np.int8))
        trits = self._picked([part.trits for part in self.parts], piece)
        groups = self._picked([part.groups for part in self.parts], piece) if self.group_size else None
        return ternary_image.pack(layout, trits, groups)

    def constants(self, piece: slice) -> U8:
        """Return the row constants of a piece, uint8 [rows, 8]."""
        rows = len(self.parts[0].weight)

        def of_rows(values: Any) -> I64:
            return np.broadcast_to(np.asarray(values, np.int64), (rows,))

        lines = [(0 if part.bias is None else part.bias, part.row_shift, part.scale.values) for part in self.parts]
        return pack_rows(*(self._picked([of_rows(line[i])[:, None] for line in lines], piece)[:, 0] for i in range(3)))

    def _layout(self, piece: slice, config: AcceleratorConfig) -> Int8Layout | TernaryLayout:
        shape = {
            "beat_bytes": config.beat_bytes,
            "tile_words": config.tile_words,
            "rows": piece.stop - piece.start,
            "columns": self.columns,
        }
        if self.int8:
            return Int8Layout(**shape)
        return TernaryLayout(**shape, planes=self.planes, group_size=self.group_size)

    def _picked(self, arrays: Sequence[Any], piece: slice) -> Any:
        """Return the rows of a piece from the parts' arrays [..., rows, columns]."""
        if self.pair:
            half = slice(piece.start // 2, -(-piece.stop // 2))
            lines = np.stack([array[..., half, :] for array in arrays], axis=-2)  # [..., pairs, 2, columns]
            flat = lines.reshape(*lines.shape[:-3], -1, lines.shape[-1])
            return flat[..., : piece.stop - piece.start, :]
        return arrays[0][..., piece if self.order is None else self.order[piece], :]
