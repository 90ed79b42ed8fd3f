"""The engine: gather the passes of all sequences, submit them together, and hand the results back.

Each step makes at most one pass of each sequence, and the passes together have at most ``rows`` rows. Texts that are being
written come first: each gets an equal share of the rows, for its next token and for guesses. The rows that are left go to
prompts, which are read in chunks (chunked prefill, 2308.16369), several short ones in one pass. While texts are being
written, chunks are small (``ChunkSize``), so that a long prompt does not interrupt the others' texts, and a few passes are
without prompts, so that their time is known.

A sequence may need several rows in a pass (``TokenSequence.least_rows``), such as one that writes blocks. It gets them, or
waits for a later pass. Whoever waited is served first in the next pass, so that nobody starves.

Prompts take turns: in one pass the prompt with the fewest tokens left comes first, in the next one the prompt that was added
first. So a short prompt beside a long one takes at most twice as many passes as alone, and the long one, too. A pass has
rows of few prompts, because each prompt's rows read its keys and values again.

What a sequence writes does not depend on the others: they share passes only, and a target whose ``info.batch_invariant`` is
True computes a row without regard to other rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from edgedec.errors import EdgedecError
from edgedec.runtime.drafting import together
from edgedec.runtime.engine.chunk_size import ChunkSize
from edgedec.runtime.protocols import Pass, PassResult, Room, Target, Token, TokenSequence
from edgedec.runtime.rounds.cost import ObservedCost

__all__ = ["Engine", "Progress"]


@dataclass(slots=True, eq=False)
class Progress:
    """The part that a sequence has in a step.

    Members:
        sequence: the sequence.
        work, result: its pass and the result; None if it needed no pass, and ``result`` also if there was an error.
        rows: rows of the pass.
        tokens: tokens that it wrote.
        error: reason why it cannot go on; None if it can.
    """

    sequence: TokenSequence
    work: Pass | None = None
    result: PassResult | None = None
    tokens: Sequence[Token] = ()
    error: Exception | None = None
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = 0 if self.work is None else len(self.work.ids)


class Engine:
    """The loop that writes texts.

    A sequence that fails ends alone: its error is in the result of ``step``. If the target fails, all sequences that had
    rows in the pass end.

    Parameters:
        target: runs the passes.
        rows: maximum number of rows of a step, at least the number of sequences.
        cost: duration of passes; every pass of texts that are being written updates it.
        together: True if the target runs the passes of a step as one; False if it runs them in turns.

    Members:
        target, cost: the parameters of these names.
        passes: number of passes that were run so far; one over several sequences counts once.
    """

    def __init__(self, target: Target, *, rows: int, cost: ObservedCost, together: bool = True) -> None:
        self.target, self.cost, self._rows, self._together = target, cost, rows, together
        self.passes = 0
        self._sequences: list[TokenSequence] = []
        self._last: list[Progress] = []  # parts of the last step, of sequences that go on
        self._waited: list[TokenSequence] = []  # sequences for which the last step had too few rows
        # Rows of the others, the number of other texts, and their tokens, as each sequence may expect them.
        self._expected: dict[TokenSequence, tuple[int, int, int]] = {}
        engine = weakref.proxy(self)  # no cycle, so a dropped engine frees the caches of its sequences at once
        self._oldest_next = False  # the prompt that was added first comes first in the next pass with several
        self._chunk = ChunkSize(lambda rows: engine.cost.seconds(rows, 0))

    @property
    def sequences(self) -> tuple[TokenSequence, ...]:
        """The sequences that have not ended, in the order in which they were added."""
        return tuple(self._sequences)

    def add(self, sequence: TokenSequence) -> None:
        """Give a sequence a part in all further steps."""
        self._sequences.append(sequence)

    def remove(self, sequence: TokenSequence) -> None:
        """Give a sequence no part in further steps. One that has ended is removed already."""
        self._sequences = [other for other in self._sequences if other is not sequence]
        self._last = [part for part in self._last if part.sequence is not sequence]
        self._waited = [other for other in self._waited if other is not sequence]

    def write(self, sequence: TokenSequence) -> Iterator[Token]:
        """Yield the tokens of one sequence, until it ends or the caller closes the iterator. It must be the only one.

        Raises:
            EdgedecError: the sequence failed.
        """
        self.add(sequence)
        try:
            while self._sequences:
                for part in self.step():
                    yield from part.tokens
                    if part.error is not None:
                        raise part.error
        finally:
            self.remove(sequence)

    def step(self) -> list[Progress]:
        """Run at most one pass of every sequence, and return the progress of each.

        If all texts are in the compiled loop, a step may have several rounds.
        """
        parts = self._write_rounds()
        if parts is None:
            parts = self._gather()
            if passes := [part for part in parts if part.work is not None]:
                self._run(passes)
            for part in parts:
                if part.error is None:
                    try:
                        part.tokens = part.sequence.take(part.result)
                    except Exception as error:
                        part.error = error
        self._last = parts
        if any(part.error is not None or part.sequence.ended for part in parts):
            failed = [part.sequence for part in parts if part.error is not None]
            self._sequences = [text for text in self._sequences if not text.ended and text not in failed]
            self._last = [part for part in parts if part.sequence in self._sequences]
        return parts

    def _write_rounds(self) -> list[Progress] | None:
        """Let the sequences run rounds in the compiled loop; None if it cannot run them."""
        sequences = self._sequences
        apart = not self._together and len(sequences) > 1
        if not sequences or apart or any(text.reading or text.ended for text in sequences):
            return None
        self._expect()
        rooms, left = [], self._rows
        for number, sequence in enumerate(sequences):
            rows = left // (len(sequences) - number)
            if rows < sequence.least_rows:
                return None
            rooms.append(self._room(sequence, rows))
            left -= rows
        parts, past = [Progress(text) for text in sequences], max([text.state.length for text in sequences])
        try:
            written = sequences[0].write_rounds(self.target, sequences, rooms)
        except Exception as error:
            for part in parts:
                part.error = error
            return parts
        if written is None:
            return None
        passes: list[tuple[int, float]] = []  # rows of all texts, and seconds
        for part, result in zip(parts, written, strict=True):
            if isinstance(result, Exception):
                part.error = result
                continue
            part.tokens = result.tokens
            for number, (part.rows, seconds) in enumerate(result.passes):
                if number == len(passes):
                    passes.append((0, seconds))
                passes[number] = (passes[number][0] + part.rows, seconds)
        self.passes += len(passes)
        for rows, seconds in passes:
            self._chunk.observe(rows, 0, 0, seconds)
            self.cost.observe(rows, seconds, past)
        return parts

    def _gather(self) -> list[Progress]:
        """Ask the sequences for their passes."""
        waited, self._waited = self._waited, []
        order = [*waited, *[text for text in self._sequences if text not in waited]] if waited else self._sequences
        writing = [sequence for sequence in order if not sequence.reading]
        reading = [sequence for sequence in self._sequences if sequence.reading]
        self._expect()
        # A prompt that waited gets its rows before texts share the others, because these may take all of them each time.
        kept = max([sequence.least_rows for sequence in reading if sequence in waited], default=0)
        rooms, left = list[tuple[TokenSequence, Room]](), self._rows - kept
        for number, sequence in enumerate(writing):
            rows = max(left // (len(writing) - number), sequence.least_rows)
            if rows > left:
                self._waited.append(sequence)
                continue
            rooms.append((sequence, self._room(sequence, rows)))
            left -= rows
        parts = _ask(rooms)
        parts += self._read(reading, sum([part.rows for part in parts]))
        if not parts and order:
            raise EdgedecError(f"no sequence fits into a pass of {self._rows} rows; open the target with wider passes")
        return parts

    def _read(self, reading: Sequence[TokenSequence], used: int) -> list[Progress]:
        """Ask sequences that read their prompts for their passes, beside ``used`` rows of texts that are being written."""
        left, limited, past = self._rows - used, used > 0 and self._together, 0
        parts = list[Progress]()
        for sequence in self._in_turn(reading):
            past += sequence.state.length
            if limited:
                rows = self._chunk.rows(used, past) if not parts else self._chunk.joined(used, past)
                most = rows - sum([part.rows for part in parts])
                if most > 0 and not parts:
                    most = max(most, sequence.least_rows)
            else:
                most = left
            if left < sequence.least_rows and not parts:
                self._waited.append(sequence)
            if min(most, left) < sequence.least_rows:
                break
            most = min(most, left)
            parts += _ask([(sequence, self._room(sequence, most))])
            left -= parts[-1].rows
        if parts:
            self._oldest_next = len(reading) > 1 and not self._oldest_next
        return parts

    def _in_turn(self, reading: Sequence[TokenSequence]) -> Sequence[TokenSequence]:
        """Return the order in which prompts get rows in this pass."""
        if len(reading) < 2:
            return reading
        return sorted(reading, key=lambda text: -1 if self._oldest_next and text is reading[0] else text.unread)

    def _expect(self) -> None:
        """Expect that each sequence has as many rows and tokens as in the last step."""
        self._expected = {}
        if not self._together or len(self._sequences) == 1:
            return
        parts = [(part.sequence, part.rows, len(part.tokens)) for part in self._last]
        rows, tokens = sum([rows for _, rows, _ in parts]), sum([tokens for _, _, tokens in parts])
        texts = sum([tokens > 0 for _, _, tokens in parts])
        self._expected = {text: (rows - own, texts - (got > 0), tokens - got) for text, own, got in parts}

    def _room(self, sequence: TokenSequence, rows: int) -> Room:
        """Return a room of ``rows`` rows beside the other sequences. A new one expects none in its first step."""
        return Room(rows, *self._expected.get(sequence, ()))

    def _run(self, parts: list[Progress]) -> None:
        """Submit the passes together and wait for the results."""
        self.passes += 1
        try:
            ticket = self.target.submit([(part.sequence.state, part.work) for part in parts if part.work is not None])
            try:
                ahead = [part for part in parts if part.sequence.drafts_ahead]
                for part, error in zip(ahead, together([part.sequence.draft_ahead() for part in ahead]), strict=True):
                    part.error = error
            finally:  # wait even if drafting is interrupted: no pass may be left running
                results = ticket.result()
        except Exception as error:
            drafting = next((part.error for part in parts if part.error is not None), None)
            error.__context__ = error.__context__ or drafting
            for part in parts:
                part.error = error
            return
        for part, result in zip(parts, results, strict=True):
            part.result = result
        self._observe(parts)

    def _observe(self, parts: list[Progress]) -> None:
        """Update the cost. Passes over prompts alone do not count, because they compute no logits."""
        if self._together:
            writing = chunk = past = longest = 0
            for part in parts:
                rows, length = part.rows, part.sequence.state.length
                longest = max(longest, length)
                if part.sequence.reading:
                    chunk, past = chunk + rows, past + length
                else:
                    writing += rows
            if writing and parts[0].result is not None:
                self._chunk.observe(writing, chunk, past, parts[0].result.seconds)
                self.cost.observe(writing + chunk, parts[0].result.seconds, longest)
            return
        for part in parts:
            if not part.sequence.reading and part.result is not None:
                self.cost.observe(part.rows, part.result.seconds, part.sequence.state.length)


def _ask(rooms: Sequence[tuple[TokenSequence, Room]]) -> list[Progress]:
    """Ask sequences for their passes. Those that draft with a model do so in step, with common passes of the model."""
    parts = []
    passes = together([sequence.next_pass(room) for sequence, room in rooms])
    for (sequence, _), work in zip(rooms, passes, strict=True):
        parts.append(Progress(sequence, error=work) if isinstance(work, Exception) else Progress(sequence, work))
    return parts
