"""The host's side of a pass: the content of the input buffer, and the meaning of the output buffer."""

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError, UsageError
from edgedec.hw.compiler.constants import angle_items, load_items
from edgedec.hw.compiler.output_places import tap_places
from edgedec.hw.compiler.program import Program, result_bytes
from edgedec.hw.compiler.results import Results
from edgedec.hw.compiler.rough_head import again, again_whole, rescoring_of
from edgedec.hw.compiler.taps import TapFacts
from edgedec.hw.isa.instructions import Destination, When
from edgedec.hw.isa.output_layout import RESULT_BYTES, ROWS_OFFSET
from edgedec.reference.integer_profile.ops.embed import EmbedConstants
from edgedec.reference.integer_profile.tables import rotary
from edgedec.reference.integer_profile.taps import TappedRows
from edgedec.reference.integer_profile.values import Logits
from edgedec.schemes import EmbeddingWeight, Int8Weight

__all__ = ["ProgramHost", "Results"]

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]


class ProgramHost:
    """A program with the embedding table of its bundle, ``program.host.embedding``.

    With a rough head, results and whole rows are those after the likeliest tokens were scored again.

    Members:
        beside: bytes of the output buffer that results need beside the first ones; empty without a rough head.

    Args:
        program: the program.
        embedding: its embedding table.
        head: the weight ``program.host.rough.head``; None without a rough head.

    Raises:
        UsageError: the table or the head has another shape.
    """

    def __init__(self, program: Program, embedding: EmbeddingWeight, head: Int8Weight | None = None) -> None:
        facts = program.host
        self._table = EmbedConstants(weight=embedding, unit=2.0**-facts.residual_fraction, scale=facts.embedding_scale)
        if self._table.shape != (facts.vocab, facts.hidden):
            shape = "x".join(map(str, self._table.shape))
            raise UsageError(
                f"the program's {facts.embedding} is {facts.vocab}x{facts.hidden}, not {shape}; open the bundle that it was "
                "compiled from"
            )
        self.program = program
        # Computed once, because a board's processor is slow: the places of the items, and the angles of all positions.
        (self._rows,) = program.input_offsets(Destination.LOAD)
        turns = [(facts.inverse_frequencies, facts.magnitude), (facts.second_frequencies, facts.second_magnitude)]
        self._turns = [turn for turn in turns if turn[0]]
        starts = program.input_offsets(Destination.ANGLES) if self._turns else ()
        if len(starts) != len(self._turns):
            raise UsageError(f"the program reads {len(starts)} tables of angles, and names {len(self._turns)}")
        context = np.arange(program.config.context, dtype=np.int32)
        self._tables = {start: self._table_of(context, *turn) for start, turn in zip(starts, self._turns, strict=True)}
        self.rescoring, self.beside = None, range(0)
        if facts.rough is not None:
            self.rescoring = rescoring_of(
                facts.rough,
                head,
                shape=(facts.vocab, facts.hidden),
                candidates=min(program.config.top_k, facts.vocab),
                rough_exponent=facts.logit_exponent,
            )
            places = tap_places(program.config, program.instructions[self.tap(facts.rough.norm).instruction])
            assert places is not None
            assert places.norm is not None
            self.beside = range(places.norm, places.end)

    def input(self, ids: I32, positions: I32, embeds: NDArray[np.float32] | None = None) -> U8:
        """Return the input buffer of a pass, uint8 [input_bytes].

        Args:
            ids: int32 [n], 1 to slots of them; id -k means row k - 1 of ``embeds``.
            positions: int32 [n], positions in the text.
            embeds: float32 [m, hidden], rows that are not in the table.

        Raises:
            UsageError: there are too many ids or none, an unknown id, or another number of positions.
        """
        slots, embed_count = self.program.config.slots, 0 if embeds is None else len(embeds)
        if not 1 <= len(ids) <= slots or len(positions) != len(ids):
            raise UsageError(f"a pass has 1 to {slots} ids and as many positions, not {len(ids)} and {len(positions)}")
        if int(ids.min()) < -embed_count or int(ids.max()) >= self.program.host.vocab:
            raise UsageError(
                f"ids {int(ids.min())}..{int(ids.max())} are not in {-embed_count}..{self.program.host.vocab - 1}"
            )
        buffer = np.zeros(self.program.input_bytes, np.uint8)
        _put(buffer, self._rows, load_items(self._table.rows(ids, embeds), slots))
        inside = 0 <= int(positions.min()) <= int(positions.max()) < self.program.config.context
        for (start, (cos, sin)), turn in zip(self._tables.items(), self._turns, strict=True):
            # The accelerator refuses other positions.
            turned = (cos[positions], sin[positions]) if inside else self._table_of(positions, *turn)
            _put(buffer, start, angle_items(*turned, slots))
        return buffer

    def _table_of(self, positions: I32, frequencies: tuple[float, ...], magnitude: float) -> tuple[I64, I64]:
        return rotary(positions, frequencies, magnitude, pairs=self.program.config.head_dim // 2)

    def results(self, output: U8, rows: I32) -> Results:
        """Return the likeliest tokens of the slots ``rows`` from the output buffer of a pass with logits.

        Raises:
            DeviceError: an id or a mantissa is impossible.
        """
        found = self._results(output, rows)
        if self.rescoring is None:
            return found
        return again(self.rescoring, found, self._norm(output, rows), self.program.counted)

    def _norm(self, output: U8, rows: I32) -> I64:
        """Return the product of the norm from which tokens are scored again, s27 [r, hidden]."""
        assert self.program.host.rough is not None
        return self.tapped(output, self.program.host.rough.norm, rows).values

    def _results(self, output: U8, rows: I32) -> Results:
        """Return what the accelerator has written of its likeliest tokens."""
        config, vocab = self.program.config, self.program.host.vocab
        raw = np.ascontiguousarray(output[: result_bytes(config)])
        scales = raw[: 8 * config.slots].view(np.int16).reshape(config.slots, 4)[rows]
        mantissa = scales[:, 0].astype(np.int64) & 0xFFFF
        best = raw[8 * config.slots :].view("<i4").reshape(config.top_k, config.slots, 2)
        best = best[: min(config.top_k, vocab), rows].transpose(1, 0, 2)  # [r, k, 2]
        if ((best[..., 1] < 0) | (best[..., 1] >= vocab)).any():
            raise DeviceError(
                f"the accelerator gave ids outside of 0..{vocab - 1}; reset it, or load the program again"
            )
        return Results(
            ids=np.ascontiguousarray(best[..., 1]),
            logits=best[..., 0].astype(np.int64),
            mantissa=mantissa,
            exponent=self._exponent(scales),
            sums=np.ascontiguousarray(scales[:, 2:]).view("<u4")[:, 0].astype(np.int64),
            cap=self.program.host.logits_cap,
        )

    def logits(self, output: U8, rows: I32) -> Logits:
        """Return whole rows of logits of the slots ``rows`` from the output buffer of a pass that wrote them."""
        config, size = self.program.config, self.program.row_bytes
        raw = np.ascontiguousarray(output[ROWS_OFFSET : ROWS_OFFSET + self.program.host.vocab * size])
        values = raw.view("<i4").reshape(-1, size // 4)[:, rows].T.astype(np.int64)
        scales = np.ascontiguousarray(output[: 8 * config.slots]).view("<i2").reshape(config.slots, 4)[rows]
        whole = Logits(
            values=values,
            mantissa=scales[:, 0].astype(np.int64) & 0xFFFF,
            exponent=self._exponent(scales),
            cap=self.program.host.logits_cap,
        )
        if self.rescoring is None:
            return whole
        return again_whole(self.rescoring, whole, self._results(output, rows), self._norm(output, rows))

    def tapped(self, output: U8, name: str, rows: I32) -> TappedRows:
        """Return a tapped value of the slots ``rows`` from the output buffer of a pass that wrote it.

        Raises:
            UsageError: the program does not write this value.
            DeviceError: a root is impossible.
        """
        tap = self.tap(name)
        config, size = self.program.config, self.program.row_bytes
        places = tap_places(config, self.program.instructions[tap.instruction])
        assert places is not None
        at = places.norm if tap.normed else places.vector
        assert at is not None
        values = (
            np.ascontiguousarray(output[at : at + tap.elements * size]).view("<i4").reshape(-1, size // 4)[:, rows].T
        )
        if places.roots is None or not tap.normed:
            return TappedRows(form=tap.form, values=values)
        end = places.roots + RESULT_BYTES * config.slots
        roots = np.ascontiguousarray(output[places.roots : end]).view("<i2").reshape(config.slots, 4)[rows]
        root = roots[:, 0].astype(np.int64) & 0xFFFF
        if (root < 1 << 15).any():
            raise DeviceError(f"the accelerator gave a root of {name} below 2^15; reset it, or load the program again")
        return TappedRows(form=tap.form, values=values, root=root, exponent=roots[:, 1].astype(np.int64))

    def tap(self, name: str) -> TapFacts:
        """Return the facts of a tapped value.

        Raises:
            UsageError: the program does not write this value.
        """
        for tap in self.program.host.taps:
            if tap.name == name:
                return tap
        known = ", ".join(tap.name for tap in self.program.host.taps) or "none"
        raise UsageError(f"the program does not write {name!r}, only {known}; compile it with taps=({name!r},)")

    def needs_logits(self, name: str) -> bool:
        """Return whether passes with logits only write a value, one after the last layer's keys and values."""
        return self.program.instructions[self.tap(name).instruction]["when"] == When.WITH_LOGITS

    def _exponent(self, scales: NDArray[np.int16]) -> I64:
        return scales[:, 1].astype(np.int64) + self.program.host.logit_exponent


def _put(buffer: U8, at: int, items: U8) -> None:
    buffer[at : at + items.size] = items.reshape(-1)
