"""The configuration of an accelerator: one frozen object from which everything else follows."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from edgedec.errors import BundleError, UsageError
from edgedec.graph.capacity import Capacity
from edgedec.hw.isa.kv_layout import CacheRows, KvLayout, widest_chunk

__all__ = [
    "ACCUMULATOR_BITS",
    "ADDRESS_BITS",
    "CONSTANT_BEATS",
    "GROUP_COLUMNS",
    "HEAD_NORM_ITEMS",
    "MATRICES_AHEAD",
    "PASSES_AHEAD",
    "READ_BURSTS",
    "RING_SLACK",
    "ROWS",
    "VECTORS_AHEAD",
    "AcceleratorConfig",
    "configuration_text",
    "constant_queues",
    "head_gains",
    "row_gains",
]

ROWS = 5  # rows of a ternary beat: a byte holds five trits, 3**5 = 243
GROUP_COLUMNS = 3  # columns that share a table
HEAD_NORM_ITEMS = 4  # items of 16 bits before the gains of a norm of heads or of rows: three of eps, and the shift
ACCUMULATOR_BITS = 32  # bits of a sum
ADDRESS_BITS = 40  # bits of an address on the bus
CONSTANT_BEATS = 512  # beats of constants that may wait to be unpacked; the depth of a RAMB18
RING_SLACK = 32  # rows by which a sequence can go back in a ring, and most rows of a pass; at least the most slots
VECTORS_AHEAD = 4  # vectors that may be announced ahead
MATRICES_AHEAD = 8  # matrices that may be queued before their rows arrive
PASSES_AHEAD = 16  # passes and commits that may wait for the one that runs
READ_BURSTS = (
    8  # bursts of a read port without their last beat: as many commands as a port of a Zynq takes (AMD UG1085)
)
_BLOCK_WORDS = 512  # words of a RAMB18 at its widest, 36 bits
_RESULTS = (
    512  # results of 8 bytes before the rows of logits: ROWS_OFFSET / RESULT_BYTES of edgedec.hw.isa.output_layout
)
_MOST_COLUMNS = 1 << 16  # columns of all query heads
_MOST_RUN = (1 << 24) - 1  # beats of a run, limited by an instruction's field
# Members of later versions, whose default is that the feature is missing.
_LATER = ("window", "shared", "head_norms", "post_norms", "score_cap", "gelu", "taps", "rough_head", "sequences")
_RANGES = (  # members with their least and largest values
    ("beat_bytes", 4, 64),
    ("ports", 1, 4),
    ("slots", 1, 8),
    ("sequences", 1, 8),
    ("tile_rows", ROWS, (1 << 16) - 1),
    ("context", 1, 1 << 16),
    ("window", 0, 1 << 16),
    ("width", 1, 1 << 14),
    ("hidden", 1, 1 << 14),
    ("heads", 1, 255),
    ("kv_heads", 1, 255),
    ("head_dim", 2, 2048),
    ("rough_head", 0, 2),
    ("softmax_lanes", 1, 8),
    ("top_k", 1, 64),
    ("prefetch_beats", 16, 1 << 16),
    ("burst_beats", 1, 256),
    ("inputs", 1, PASSES_AHEAD),
    ("instructions", 16, 1 << 16),
)


@dataclass(frozen=True, kw_only=True)
class AcceleratorConfig:
    """The configuration of an accelerator.

    Members:
        beat_bytes: bytes of the read stream per cycle, a power of two, 4 to 64. A ternary beat has 5 rows x beat_bytes
            columns, an int8 beat one row of as many.
        ports: number of AXI read ports that share a beat, 1, 2 or 4; each has beat_bytes / ports bytes, at least 4.
        slots: largest number of tokens of a pass, 1 to 8; all share the weight stream.
        sequences: largest number of sequences that the tokens of a pass belong to, up to ``slots``; their positions share
            ``context``. More than one excludes rings (``window``).
        tile_rows: rows whose partial sums are kept at once, a multiple of 5, at most 65,535.
        context: positions of the key and value cache; a head's keys have fewer than 2^24 beats.
        window: largest window of a layer whose keys and values are kept in a ring, at least 2; 0: all layers keep all
            rows.
        width: elements of the widest vector that a matrix reads, at most 2^14.
        hidden: elements of the residual.
        heads, kv_heads: largest numbers of heads of attention; heads is a multiple of kv_heads.
        head_dim: exact number of elements of every head, even; all heads together have at most 2^16.
        shared: whether query heads that share keys and values attend together where a pass leaves slots unused; the keys
            and values are then read once for them (``together``).
        head_norms: whether there is a unit that norms each head of queries and keys before its rotation.
        post_norms: whether there is a unit that norms the rows of a matrix before they are added to the residual.
        score_cap: whether attention applies a soft-cap to its scores; there must then be one in all layers.
        gelu: whether the table of the gated activation is that of GELU (gelu_tanh), in place of SiLU's.
        taps: whether there is a unit that writes vectors and norms to memory where a program says so.
        rough_head: planes of a head in trits whose likeliest tokens the host scores again with int8 rows, 1 or 2; of two,
            the first counts three times. It needs ``taps`` and ``per_row``; 0: there is no such head.
        softmax_lanes: positions per slot and cycle of the softmax; a power of two.
        scaling: whether there are group mantissas, which models of trit planes need.
        per_row: whether each row has its own weight mantissa, which int8 matrices need.
        top_k: number of likeliest tokens of a slot that are reported; slots * (top_k + 1) is at most 512.
        prefetch_beats: beats that are read ahead, over all ports.
        burst_beats: longest burst of the AXI ports in beats, a power of two up to 256. No program depends on it.
        inputs: input buffers in memory, so that the host writes the input of a pass while those before it run, 1 to 16. No
            program depends on it.
        instructions: largest number of instructions of a program.
        ultra: whether the part has UltraRAM; ``style`` says which memories use it.
        clock_hz: clock in Hz, used to convert cycles to seconds; assumed, not verified here.

    Raises:
        UsageError: a member has a wrong type or is out of range, or members contradict each other.
    """

    beat_bytes: int = 64
    ports: int = 4
    slots: int = 8
    sequences: int = 1
    tile_rows: int = 1280
    context: int = 1024
    window: int = 0
    width: int = 4096
    hidden: int = 1536
    heads: int = 16
    kv_heads: int = 16
    head_dim: int = 96
    shared: bool = False
    head_norms: bool = False
    post_norms: bool = False
    score_cap: bool = False
    gelu: bool = False
    taps: bool = False
    rough_head: int = 0
    softmax_lanes: int = 1
    scaling: bool = False
    per_row: bool = True
    top_k: int = 8
    prefetch_beats: int = 4096
    burst_beats: int = 64
    inputs: int = 4
    instructions: int = 1536
    ultra: bool = True
    clock_hz: float = 250e6

    def __post_init__(self) -> None:
        self._check_kinds()
        if self.beat_bytes not in (4, 8, 16, 32, 64):
            raise UsageError(f"beat_bytes must be 4, 8, 16, 32 or 64, not {self.beat_bytes!r}")
        if self.ports not in (1, 2, 4) or self.beat_bytes // self.ports < 4:
            raise UsageError(f"ports must be 1, 2 or 4 with at least 4 bytes each, not {self.ports!r}")
        for name, least, most in _RANGES:
            if not least <= getattr(self, name) <= most:
                raise UsageError(f"{name} must be {least} to {most}, not {getattr(self, name)!r}")
        if self.burst_beats & (self.burst_beats - 1):
            raise UsageError(f"burst_beats must be a power of two, not {self.burst_beats!r}")
        if self.window == 1:  # no committed position would be read
            raise UsageError("window must be 0, or 2 at least, not 1")
        if self.sequences > self.slots:
            raise UsageError(f"sequences must be at most slots {self.slots}, not {self.sequences!r}")
        if self.sequences > 1 and self.window:
            raise UsageError(
                f"rings hold one sequence, so window must be 0 with sequences {self.sequences}, not {self.window}: set "
                "window=0, which keeps all rows, or sequences=1"
            )
        if self.tile_rows % ROWS:
            raise UsageError(f"tile_rows must be a multiple of {ROWS}, not {self.tile_rows!r}")
        if self.head_dim % 2:
            raise UsageError(f"head_dim must be even, not {self.head_dim!r}")
        if self.heads % self.kv_heads:
            raise UsageError(f"heads must be a multiple of kv_heads {self.kv_heads}, not {self.heads!r}")
        if self.softmax_lanes & (self.softmax_lanes - 1) or self.kv_layout.positions % self.softmax_lanes:
            raise UsageError(
                f"softmax_lanes must be a power of two that divides {self.kv_layout.positions}, not {self.softmax_lanes!r}"
            )
        if self.scaling and self.beat_bytes < ROWS:
            raise UsageError(f"beat_bytes must be at least 8 with scaling, not {self.beat_bytes!r}")
        if self.heads * self.head_dim > _MOST_COLUMNS:
            raise UsageError(
                f"heads * head_dim must be at most {_MOST_COLUMNS}, not {self.heads} * {self.head_dim}; take fewer heads"
            )
        if self.kv_layout.beats(self.context) > _MOST_RUN:
            raise UsageError(
                f"a head's keys must be at most {_MOST_RUN} beats, not {self.kv_layout.beats(self.context)}: lower context "
                f"{self.context}, or raise beat_bytes {self.beat_bytes}"
            )
        if self.slots * (self.top_k + 1) > _RESULTS:
            raise UsageError(
                f"top_k must be at most {_RESULTS // self.slots - 1} with slots {self.slots}, not {self.top_k}: results end "
                f"before byte {8 * _RESULTS}; lower top_k or slots"
            )
        if self.rough_head and not (self.taps and self.per_row):
            raise UsageError(
                "rough_head needs taps=True and per_row=True: the host scores tokens again from the head's tapped norm, and "
                "each row of the head has a scale"
            )
        if not 0 < self.clock_hz < float("inf"):
            raise UsageError(f"clock_hz must be positive and finite, not {self.clock_hz!r}")

    def _check_kinds(self) -> None:
        for member in fields(self):
            value, kind = getattr(self, member.name), type(member.default)
            fits = type(value) in (int, float) if kind is float else type(value) is kind
            if not fits:
                raise UsageError(f"{member.name} must be of type {kind.__name__}, not {value!r}")

    @property
    def tied(self) -> bool:
        """True if matrices may have two planes of which the first counts three times."""
        return self.rough_head == 2

    @property
    def port_bytes(self) -> int:
        """Bytes of each read port, and of the write port."""
        return self.beat_bytes // self.ports

    @property
    def groups(self) -> int:
        """Tables per slot: groups of three columns in a beat, the last one perhaps narrower."""
        return -(-self.beat_bytes // GROUP_COLUMNS)

    @property
    def tile_words(self) -> int:
        """Words of five rows in a tile."""
        return self.tile_rows // ROWS

    @property
    def depth(self) -> int:
        """Blocks of columns of the widest vector."""
        return -(-self.width // self.beat_bytes)

    @property
    def chunk(self) -> int:
        """Elements of a head in a beat of keys or values; they lie in one port's slice, so that one write reaches them."""
        return widest_chunk(self.port_bytes, self.head_dim)

    def style(self, depth: int) -> Literal["block", "ultra"]:
        """Return the kind of a memory that is as wide as a word of all slots, and ``depth`` words deep.

        A RAMB18 holds 36 bits x 512, an UltraRAM 72 x 4096, which is four times as much per bit of width in relation to
        how many of each a part has. Up to 512 words an UltraRAM saves two RAMB18, and with every 512 words more it
        saves two more. Deeper memories therefore use UltraRAM if there is some.
        """
        return "ultra" if self.ultra and depth > _BLOCK_WORDS else "block"

    @property
    def kv_layout(self) -> KvLayout:
        return KvLayout(beat_bytes=self.beat_bytes, head_dim=self.head_dim, chunk=self.chunk)

    @property
    def ring(self) -> CacheRows | None:
        """Rows of a run of a layer with a ring; None if rings would not be shorter than ``context``."""
        if not self.window:
            return None
        rows = self.ring_capacity.rows(self.context)
        return CacheRows(layout=self.kv_layout, rows=rows, window=self.window) if rows < self.context else None

    @property
    def ring_capacity(self) -> Capacity:
        """Rows of a sequence that layers with a ring keep, if there are rings."""
        return Capacity(window=self.window, slack=RING_SLACK, unit=self.kv_layout.positions)

    def cache_rows(self, ring: int) -> CacheRows:
        """Return the rows of a run of a layer, whose instructions have the field ``ring``.

        Raises:
            BundleError: the accelerator has no rings.
        """
        if not ring:
            return CacheRows(layout=self.kv_layout, rows=self.context)
        if self.ring is None:
            raise BundleError(
                "an instruction needs a ring; this accelerator has none: compile the program for it again"
            )
        return self.ring

    def together(self, group: int, slots: int) -> int:
        """Return the number of query heads that attend together in a pass of ``slots`` tokens, of ``group`` that share keys.

        It is a power of two that divides the group; each head takes the tokens, rounded up to a power of two, as rows.
        """
        if not self.shared:
            return 1
        rows, each = 1 << (self.slots.bit_length() - 1), 1 << (slots - 1).bit_length()
        return max(1, min(group & -group, rows // each))

    @property
    def hash(self) -> int:
        """A hash of 64 bits of all members that a program depends on; the program carries the same.

        A member that says that a later feature is missing is left out, so that earlier programs keep their hash.
        """
        members = asdict(self)
        later = [one.name for one in fields(self) if one.name in _LATER and members[one.name] == one.default]
        for name in ("clock_hz", "ultra", "burst_beats", "inputs", *later):
            del members[name]
        digest = hashlib.sha256(json.dumps(members, sort_keys=True).encode()).digest()
        return int.from_bytes(digest[:8], "little")


def configuration_text(size: str, members: Mapping[str, Any]) -> str:
    """Format members as ``--configuration`` takes them: "board,slots=4,ultra=false"."""
    return ",".join([size, *(f"{name}={str(value).lower()}" for name, value in members.items())])


def head_gains(head_dim: int) -> int:
    """Return the items of GAINS of a matrix whose heads are normed: eps and shift, and the gains of a head."""
    return HEAD_NORM_ITEMS + head_dim


def row_gains(elements: int) -> int:
    """Return the items of GAINS of a matrix whose rows are normed: eps and shift, and the gains of the whole vector."""
    return HEAD_NORM_ITEMS + elements


def constant_queues(config: AcceleratorConfig) -> Mapping[str, int]:
    """Return the items that the queue of each kind of constant holds.

    edgedec.hw.compiler.queues checks that they suffice for a program.
    """
    columns = config.heads * config.head_dim
    return {
        "gains": max(
            config.width,
            config.hidden,
            2,
            2 * head_gains(config.head_dim) if config.head_norms else 0,
            row_gains(config.hidden) if config.post_norms else 0,
        ),
        "rows": config.tile_rows,
        "coding": columns,
        "factors": max(config.heads, 2),
        "scales": columns,
    }
