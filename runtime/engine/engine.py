"""The engine: gather the passes of all sequences, submit them together, and hand the results back.

Each step makes at most one pass of each sequence, and the passes together have at most ``rows`` rows. Texts that are being
written come first: each gets an equal share of the rows, for its next token and for guesses. The rows that are left go to
prompts, which are read in chunks (chunked prefill, 2308.16369), several short ones in one pass. While texts are being
written, a chunk is so small that the pass takes at most ``STALL`` times as long as without it, so that a long prompt does
not interrupt the others' texts.

What a sequence writes does not depend on the others: they share passes only, and a target whose ``info.batch_invariant`` is
True computes a row without regard to other rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from edgedec.runtime.decoders.cost import ObservedCost
from edgedec.runtime.protocols import Pass, PassResult, Room, Target, Token, TokenSequence

__all__ = ["STALL", "Engine", "Progress"]

STALL = 1.8  # ratio by which a prompt may lengthen the passes of texts that are being written


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The part that a sequence had in a step.

    Members:
        sequence: the sequence.
        tokens: tokens that it wrote.
        error: reason why it cannot go on; None if it can.
    """

    sequence: TokenSequence
    tokens: list[Token] = field(default_factory=list)
    error: Exception | None = None


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
    """

    def __init__(self, target: Target, *, rows: int, cost: ObservedCost, together: bool = True) -> None:
        self.target, self.cost, self._rows, self._together = target, cost, rows, together
        self._sequences: list[TokenSequence] = []
        self._used: dict[int, int] = {}  # rows of each sequence in the last step, by its identity

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
        """Run at most one pass of every sequence, and return the progress of each, in the order of adding."""
        failed: dict[int, Exception] = {}
        work = self._gather(failed)
        results = self._run([(sequence, item) for sequence, item in work if item is not None], failed)
        parts = []
        for sequence, _ in work:
            tokens: list[Token] = []
            if id(sequence) not in failed:
                try:
                    tokens = sequence.take(results.get(id(sequence)))
                except Exception as error:
                    failed[id(sequence)] = error
            parts.append(Progress(sequence=sequence, tokens=tokens, error=failed.get(id(sequence))))
        self._sequences = [it for it in self._sequences if not it.ended and id(it) not in failed]
        return parts

    def _gather(self, failed: dict[int, Exception]) -> list[tuple[TokenSequence, Pass | None]]:
        """Ask the sequences for their passes. Those that fail get an entry in ``failed``."""
        writing = [sequence for sequence in self._sequences if not sequence.reading]
        reading = [sequence for sequence in self._sequences if sequence.reading]
        before = sum(self._used.values()) if self._together else 0
        work: list[tuple[TokenSequence, Pass | None]] = []
        left, others = self._rows, len(writing)
        for number, sequence in enumerate([*writing, *reading]):
            if number == len(writing) and writing:
                left = min(left, self._chunk(self._rows - left))
            if left <= 0:
                break
            rows = left if number >= len(writing) else max(1, left // others)
            others -= 1
            beside = max(0, before - self._used.get(id(sequence), 0))
            item = None
            try:
                item = sequence.next_pass(Room(rows=rows, beside=beside))
            except Exception as error:
                failed[id(sequence)] = error
            work.append((sequence, item))
            left -= 0 if item is None else len(item.ids)
        return work

    def _chunk(self, rows: int) -> int:
        """Return the number of rows of prompts that may join a pass of ``rows`` rows."""
        most, alone = self._rows - rows, self.cost.seconds(rows, 0)
        if not alone or not self._together:
            return most
        sizes = [size for size in range(1, most + 1) if self.cost.seconds(rows + size, 0) <= STALL * alone]
        return max(sizes, default=min(1, most))

    def _run(self, passes: list[tuple[TokenSequence, Pass]], failed: dict[int, Exception]) -> dict[int, PassResult]:
        """Submit the passes together and return the results by the identity of the sequence."""
        self._used = {id(sequence): len(item.ids) for sequence, item in passes}
        if not passes:
            return {}
        try:
            ticket = self.target.submit([(sequence.state, item) for sequence, item in passes])
            try:
                for sequence, _ in passes:
                    self._draft_ahead(sequence, failed)
            finally:  # wait even if drafting is interrupted: no pass may be left running
                results = ticket.result()
        except Exception as error:
            error.__context__ = error.__context__ or next(iter(failed.values()), None)  # drafting may have failed, too
            failed.update({id(sequence): error for sequence, _ in passes})
            return {}
        self._observe(passes, results)
        return {id(sequence): result for (sequence, _), result in zip(passes, results, strict=True)}

    def _draft_ahead(self, sequence: TokenSequence, failed: dict[int, Exception]) -> None:
        if sequence.reading:
            return
        try:
            sequence.draft_ahead()
        except Exception as error:
            failed[id(sequence)] = error

    def _observe(self, passes: list[tuple[TokenSequence, Pass]], results: list[PassResult]) -> None:
        """Update the cost. Passes over prompts alone do not count, because they compute no logits."""
        if self._together and not all(sequence.reading for sequence, _ in passes):
            past = max(sequence.state.length for sequence, _ in passes)
            self.cost.observe(sum(self._used.values()), results[0].seconds, past)
        elif not self._together:
            for (sequence, item), result in zip(passes, results, strict=True):
                if not sequence.reading:
                    self.cost.observe(len(item.ids), result.seconds, sequence.state.length)
