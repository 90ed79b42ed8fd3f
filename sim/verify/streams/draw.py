"""Draw the instructions of vectors and matrices, the ranges that they read, and what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.compiler import int8_image, ternary_image
from edgedec.hw.compiler.constants import (
    gain_items,
    item_bytes,
)
from edgedec.hw.compiler.int8_image import Int8Layout
from edgedec.hw.compiler.output_places import first_tap_page, tap_places
from edgedec.hw.compiler.row_constants import pack_rows
from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.hw.isa.instructions import (
    FIELDS,
    OPTIONAL,
    SIGNED,
    Base,
    Destination,
    Instruction,
    Opcode,
    Sink,
    Source,
    When,
)
from edgedec.hw.isa.output_layout import TAP_PAGE_BYTES
from edgedec.sim.interpreter.matrices import matrix_layout
from edgedec.sim.verify.streams.stream import (
    MOST_EPS,
)

__all__ = ["Draw"]

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]


class Draw:
    """The instructions and buffers of one draw so far. Random numbers of a buffer follow those of its instruction."""

    def __init__(self, config: AcceleratorConfig, rng: np.random.Generator) -> None:
        self._config, self._rng = config, rng
        self._instructions: list[Instruction] = []
        self._image: list[U8] = []
        self._input: list[U8] = []
        self._places: list[dict[str, int]] = []  # start, run, ring and heads of each ATTEND
        self._kv_beats = 0
        self._slots = self._pick(1, config.slots)
        self._committed = self._pick(0, config.context - self._slots)
        self._logits = int(rng.integers(3))
        self._loaded = 0  # elements of the residual
        self._width, self._fresh = 0, 1  # columns of the last vector that was announced; its codes are not used yet
        self._activation: dict[str, int] = {}
        self._page = first_tap_page(config, 2 * ROWS * config.tile_words)  # first page for what vectors write

    # Numbers.

    def _chance(self, probability: float) -> bool:
        return bool(self._rng.random() < probability)

    def _pick(self, least: int, most: int) -> int:
        """Return a number of a range, in one of four draws one of its ends."""
        end = self._rng.random()
        drawn = int(self._rng.integers(least, most, endpoint=True))
        return least if end < 0.125 else most if end < 0.25 else drawn

    def _near(self, middle: int, most: int, least: int = 0) -> int:
        """Return a number of a range, mostly near a middle one, with which values have bits left."""
        spread = int(np.clip(middle + self._rng.integers(-6, 7), least, most))
        return spread if self._chance(0.75) else self._pick(least, most)

    def _values(self, bits: int, *shape: int, signed: bool = True) -> I64:
        """Return integers of any magnitude up to ``bits``, some of them at the ends of the symmetric range."""
        most = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
        size = self._pick(0, bits)
        drawn = self._rng.integers(-most if signed else 0, most, shape, endpoint=True) >> (bits - size)
        ends = self._rng.random(shape)
        return np.where(ends < 0.02, most, np.where(ends < 0.04, -most if signed else 0, drawn)).astype(np.int64)

    # Instructions and the ranges that they read.

    def _emit(self, opcode: Opcode, **fields: int) -> None:
        for _ in range(self._rng.poisson(0.15)):
            self._instructions.append(self._skipped())
        when = (When.WITH_LOGITS if self._logits else When.WITHOUT_LOGITS) if self._chance(0.2) else When.ALWAYS
        self._instructions.append(
            Instruction(opcode, {name: int(value) for name, value in {"when": when, **fields}.items() if value})
        )

    def _skipped(self) -> Instruction:
        """Return an instruction with any fields that the pass does not execute; it taps nothing."""
        opcode = Opcode(int(self._rng.integers(len(Opcode))))
        fields = {
            "when": int(When.WITHOUT_LOGITS if self._logits else When.WITH_LOGITS),
            "wait": int(self._chance(0.5)),
        }
        for name, bits in FIELDS[opcode].items():
            least = -(1 << (bits - 1)) if name in SIGNED else 0
            fields[name] = 0 if name in OPTIONAL or name == "ring" else self._pick(least, least + (1 << bits) - 1)
        return Instruction(opcode, fields)

    def _stored(self, base: Base, raw: U8) -> int:
        """Append bytes of whole beats to a buffer, perhaps after a gap. Return their first beat."""
        buffer, width = (self._image if base == Base.IMAGE else self._input), self._config.beat_bytes
        gap = int(self._rng.integers(0, 4)) if self._chance(0.3) else 0
        buffer += [self._rng.integers(0, 256, gap * width, np.uint8), raw.reshape(-1)]
        return sum(part.size for part in buffer[:-1]) // width

    def _read(self, destination: Destination, items: U8, *, parts: int = 2) -> None:
        """Read items uint8 [n, size] from either buffer, with up to ``parts`` READs, whose unused items are anything."""
        config = self._config
        size = item_bytes(destination, config)
        cuts = sorted({0, len(items), *(self._pick(0, len(items)) for _ in range(parts - 1) if self._chance(0.3))})
        for first, end in pairwise(cuts):
            beats = -(-(end - first) * size // config.beat_bytes)
            spare = (beats * config.beat_bytes - (end - first) * size) // size
            unused = self._rng.integers(0, 256, spare * size, np.uint8)
            base = Base(int(self._chance(0.3)))
            start = self._stored(base, np.concatenate([items[first:end].reshape(-1), unused]))
            self._emit(Opcode.READ, destination=destination, base=base, start=start, beats=beats, spare=spare)

    # Vectors and matrices.

    def _vector(self, source: Source, width: int, *, late: bool = False) -> U8 | None:
        """Announce a vector, and read its gains unless they come ``late``; they are returned then."""
        normed = self._chance(0.6)
        eps = self._pick(0, MOST_EPS) if self._chance(0.3) else self._pick(0, 1 << 20)
        if not normed and self._chance(0.2):
            eps = (1 << 48) - 1  # the vector has no norm, so it changes nothing
        blocks = -(-width // self._config.beat_bytes)
        taps = self._taps(blocks, normed=normed)
        self._emit(Opcode.VECTOR, source=source, normed=normed, blocks=blocks, eps=eps, **taps)
        self._width = width
        if not normed:
            return None
        gains = gain_items(self._values(16, width))
        if late:
            return gains
        self._read(Destination.GAINS, gains)
        return None

    def _taps(self, blocks: int, *, normed: bool) -> dict[str, int]:
        """Return the fields of what a vector writes, in pages of its own."""
        if not self._config.taps:
            return {}
        tap, tap_norm = self._chance(0.3), normed and self._chance(0.6 if self._config.tied else 0.3)
        fields = {"tap": int(tap), "tap_norm": int(tap_norm), "tap_page": self._page}
        announced = Instruction(Opcode.VECTOR, {**fields, "blocks": blocks, "normed": int(normed)})
        places = tap_places(self._config, announced)
        if places is None:
            return {}
        self._page = places.end // TAP_PAGE_BYTES
        return fields

    def _matrix(
        self,
        elements: int,
        sink: Sink,
        columns: int,
        fields: Mapping[str, int],
        before: Sequence[tuple[Destination, U8]] = (),
    ) -> None:
        """Multiply the codes of ``columns`` columns, in pieces. ``before`` are constants that come with the first piece."""
        fresh, self._fresh = self._fresh, 0
        done = 0
        while done < elements:
            per_row = self._chance(0.5)
            left = -(-(elements - done) // ROWS)
            most = self._config.tile_words * (1 if per_row else 2)
            words = min(left, most if self._chance(0.6) else self._pick(1, most))
            spare = max(0, done + words * ROWS - elements)
            last = done + words * ROWS - spare == elements
            where = {"start": fields["start"] + done} if "start" in fields and not fields.get("norm_rows") else {}
            constants = [*before] if not done else []
            if per_row:
                constants.append((Destination.ROWS, self._row_constants(words * ROWS - spare)))
            self._rng.shuffle(constants)
            one = {
                **self._product(columns, rough=bool(fields.get("tied"))),
                "words": words,
                "spare": spare,
                "rows": per_row,
                "sink": sink,
            }
            self._emit(Opcode.MATRIX, **{**fields, **where, **one}, fresh=fresh and not done, more=not last)
            of = self._instructions[-1]
            for destination, items in constants:
                self._read(destination, items)
            self._weights(of)
            done += words * ROWS - spare

    def _product(self, columns: int, *, rough: bool) -> dict[str, int]:
        """Return the fields of weights and their scale; ``rough``: of a rough head's."""
        config = self._config
        int8 = config.per_row and not rough and self._chance(0.35)
        blocks = -(-columns // config.beat_bytes)
        has_groups = config.scaling and not int8 and not rough and self._chance(0.4)
        groups = self._pick(1, config.depth) if has_groups else 0
        planes = 0 if int8 else 2
        if not int8 and not rough:
            planes = self._pick(1, 15) if self._chance(0.15) else int(self._rng.integers(1, 3))
        scales = {name: self._pick(0, 65535) if self._chance(0.4) else 40000 for name in ("weight0", "weight1")}
        bases = {name: self._near(16, 255, -256) for name in ("base0", "base1")}
        # Only a plane without mantissas counts three times; other matrices may say "tied", too.
        tied = {"tied": rough or self._chance(0.4)} if config.tied else {}
        return {
            **tied,
            **{"int8": int8, "blocks": blocks, "planes": planes, "group_blocks": groups, **scales, **bases},
            **{"pre_shift": self._pick(0, 7) if self._chance(0.3) else 0, "pair": self._chance(0.4)},
        }

    def _row_constants(self, rows: int) -> U8:
        shifts = self._rng.integers(0, 32 if self._chance(0.2) else 4, rows)
        return pack_rows(self._values(27, rows), shifts.astype(np.int64), self._values(16, rows, signed=False))

    def _weights(self, of: Instruction) -> None:
        layout = matrix_layout(of, self._config)
        if isinstance(layout, Int8Layout):
            codes = self._values(8, layout.rows, layout.columns).astype(np.int8)
            beats = int8_image.pack(layout, codes)
        else:
            trits = self._rng.integers(-1, 2, (layout.planes, layout.rows, layout.columns), np.int8)
            shape = (layout.planes, layout.rows, layout.groups)
            mantissas = self._values(8, *shape, signed=False).astype(np.uint8) if layout.group_size else None
            beats = ternary_image.pack(layout, trits, mantissas)
        self._read(Destination.WEIGHTS, beats.reshape(-1, self._config.beat_bytes))
