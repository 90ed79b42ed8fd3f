"""The cache of a state on the GPU: keys and values of all sequences in blocks of 16 rows.

The buffer has a part for each key/value head, of 32-bit words: keys [block][word][16], in which a word has neighbouring
dimensions of one slot, so that neighbouring invocations read neighbouring slots; values [block][16][word]; and with 8 bits,
float32 scales of keys and of values, [block][16] each. With 16 and 8 bits a word has two and four dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.errors import EdgedecError
from edgedec.onnx.kv_cache import BLOCK_ROWS

__all__ = ["KV_CHOICES", "CacheShape"]

KV_CHOICES = (16, 8, 32)  # supported bits of keys and values; the first is the default


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """The sizes of a state's cache: key/value heads, dimensions of a head, bits (32, 16 or 8), and blocks of 16 rows."""

    kv_heads: int
    head_dim: int
    bits: int
    blocks: int

    def __post_init__(self) -> None:
        if self.bits not in KV_CHOICES or min(self.kv_heads, self.head_dim, self.blocks) < 1 or self.head_dim > 512:
            raise EdgedecError(f"a cache needs 32, 16 or 8 bits, heads of 1 to 512 dimensions, and blocks: {self}")

    @property
    def dim_words(self) -> int:
        """Words of a key or value."""
        return -(-self.head_dim * self.bits // 32)

    @property
    def row_words(self) -> int:
        """Words of a slot of one head."""
        return 2 * self.dim_words + (2 if self.bits == 8 else 0)

    @property
    def words(self) -> int:
        """Size of the buffer."""
        return self.kv_heads * self.blocks * BLOCK_ROWS * self.row_words

    def constants(self) -> dict[str, int]:
        """Return the constants of cache.wgsl."""
        slots = self.blocks * BLOCK_ROWS
        return {
            "KV_HEADS": self.kv_heads,
            "HEAD_DIM": self.head_dim,
            "BITS": self.bits,
            "DIM_WORDS": self.dim_words,
            "HEAD_WORDS": slots * self.row_words,
            "VALUES": slots * self.dim_words,
            "KEY_SCALES": 2 * slots * self.dim_words,
            "VALUE_SCALES": slots * (2 * self.dim_words + 1),
        }
