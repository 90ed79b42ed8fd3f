"""The header of a pass: the buffer that tells every kernel the rows of the pass, their sequences and their masks.

All words are 32 bits. Word 0 is always 0 (shaders use it as a number that no compiler knows), word 1 the number of rows n,
word 2 the number of result rows r, word 3 the number of sequences. From word 8 on, there are a table for each of the
``ROW_TABLES``, [rows]; the result rows, [results]; masks, [rows][words], in which bit j of row i is set if the row sees row
j of its own sequence in this pass; and the block tables of the sequences one after another, [blocks].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.onnx.kv_cache import BLOCK_ROWS
from edgedec.runtime.protocols import I32, U64

__all__ = ["ROW_TABLES", "HeadLayout"]

U32 = NDArray[np.uint32]

# id: int32, -k is row k - 1 of the pass's embeddings; position; number of the row's sequence; its first row in this pass;
# its committed rows; rows of its sequence in this pass; offset of its block table in the blocks.
ROW_TABLES = ("id", "position", "sequence", "first", "past", "count", "table")
_FIXED = 8  # words before the tables


@dataclass(frozen=True, kw_only=True)
class HeadLayout:
    """Sizes of a header.

    Members:
        rows: maximum rows of a pass.
        results: maximum result rows.
        blocks: maximum entries of all block tables together.
    """

    rows: int
    results: int
    blocks: int

    def __post_init__(self) -> None:
        if min(self.rows, self.results, self.blocks) < 1:
            raise EdgedecError(f"a header needs rows, results and blocks: {self}")

    @property
    def mask_words(self) -> int:
        """Words of a row's mask."""
        return -(-self.rows // 32)

    def table(self, name: str) -> int:
        """Return the first word of a table of ``ROW_TABLES``."""
        return _FIXED + ROW_TABLES.index(name) * self.rows

    @property
    def result_rows(self) -> int:
        """First word of the result rows."""
        return _FIXED + len(ROW_TABLES) * self.rows

    @property
    def masks(self) -> int:
        """First word of the masks."""
        return self.result_rows + self.results

    @property
    def tables(self) -> int:
        """First word of the block tables."""
        return self.masks + self.rows * self.mask_words

    @property
    def words(self) -> int:
        """Size of the header."""
        return self.tables + self.blocks

    def constants(self) -> dict[str, int]:
        """Return the constants by which shaders find their way, by name."""
        rows = {f"ROW_{name.upper()}": self.table(name) for name in ROW_TABLES}
        return {
            **rows,
            "RESULT_ROWS": self.result_rows,
            "MASKS": self.masks,
            "MASK_WORDS": self.mask_words,
            "TABLES": self.tables,
        }

    def new(self) -> U32:
        """Return an empty header, uint32 [words]."""
        return np.zeros(self.words, np.uint32)

    def write(
        self,
        to: U32,
        *,
        ids: I32,
        positions: I32,
        sequences: Sequence[tuple[int, int]],
        result_rows: I32,
        visible: U64,
        tables: Sequence[I32],
    ) -> None:
        """Write a pass of n rows to the header ``to``.

        Args:
            ids: int32 [n].
            positions: int32 [n].
            sequences: rows in this pass and committed rows of each sequence, in the order of their rows.
            result_rows: int32 [r], rows whose logits are requested.
            visible: uint64 [n, words], the masks of the sequences (``runtime.visibility.pack``).
            tables: int32 [blocks of its rows] of each sequence.

        Raises:
            EdgedecError: the pass does not fit the layout.
        """
        n, r = len(ids), len(result_rows)
        rows = sum(count for count, _ in sequences)
        blocks = sum(map(len, tables))
        if n > self.rows or r > self.results or blocks > self.blocks or rows != n or len(tables) != len(sequences):
            raise EdgedecError(
                f"a pass of {n} rows ({rows} in its sequences), {r} result rows and {blocks} blocks does not fit {self}"
            )
        to[:4] = 0, n, r, len(sequences)
        signed = to.view(np.int32)
        for name, values in (("id", ids), ("position", positions)):
            signed[self.table(name) : self.table(name) + n] = values
        first = block = 0
        for number, ((count, past), table) in enumerate(zip(sequences, tables, strict=True)):
            if len(table) * BLOCK_ROWS < past + count:
                raise EdgedecError(f"sequence {number} has {len(table)} blocks for {past + count} rows")
            for name, value in (
                ("sequence", number),
                ("first", first),
                ("past", past),
                ("count", count),
                ("table", block),
            ):
                at = self.table(name) + first
                to[at : at + count] = value
            signed[self.tables + block : self.tables + block + len(table)] = table
            first += count
            block += len(table)
        signed[self.result_rows : self.result_rows + r] = result_rows
        words = min(self.mask_words, 2 * visible.shape[1])
        masks = to[self.masks : self.masks + n * self.mask_words].reshape(n, -1)
        masks[:, words:] = 0
        masks[:, :words] = np.ascontiguousarray(visible).view(np.uint32)[:, :words]
