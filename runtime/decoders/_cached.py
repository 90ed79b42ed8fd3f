"""The part that decoders share: a cache whose rows are kept from prompt to prompt, and the passes that read a prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgedec.errors import EdgedecError, UnsupportedError, UsageError
from edgedec.runtime.capabilities import SnapshotState
from edgedec.runtime.decoders._plugin import DecoderFigures
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.protocols import (
    F32,
    I32,
    Drafter,
    Drafting,
    Limits,
    Pass,
    PassResult,
    Request,
    Room,
    State,
    Target,
    Token,
    TokenSequence,
    WrittenRounds,
)
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.rounds.statistics import Rounds
from edgedec.runtime.row_recipe import CAUSAL, RowRecipe, check_recipe, check_rows, common_prefix, reachable
from edgedec.runtime.sampling.likeliest import RowLikeliest
from edgedec.runtime.sampling.logprobs import TokenLogprobs

__all__ = ["CachedDecoder", "PromptSequence", "check_prompt"]

_LEAST_SNAPSHOT = 16  # rows of a prompt for which a snapshot of recurrent states is kept


@dataclass(kw_only=True, eq=False)
class CachedDecoder(ABC):
    """A decoder's cache. It keeps the rows of a common prefix for the next prompt.

    Members:
        target: runs the passes.
        state: the cache, opened on ``target``.
        cached: ids of the state's committed rows.
        branch: number of first rows of the next prompt that another text also has, and that the state does not.
        cost: expected duration of passes.
        rounds: statistics of the rounds of the last request.
        recipe: recipe of the committed rows.
        least_rows: number of rows that a pass of a text needs at least.
    """

    target: Target
    state: State
    cached: list[int] = field(default_factory=list)
    branch: int = 0
    cost: ObservedCost = field(default_factory=ObservedCost)
    rounds: Rounds = field(default_factory=Rounds)
    recipe: RowRecipe = CAUSAL
    least_rows: int = 1

    @property
    @abstractmethod
    def speculating(self) -> bool:
        """True while guesses are made."""

    @property
    def guesser(self) -> Drafter | None:
        """The drafter whose guesses texts are written with; None, unless overridden: nothing is guessed."""
        return None

    @property
    def figures(self) -> DecoderFigures | None:
        """Counts of the last request beside its rounds; None, unless overridden."""
        return None

    def known_rows(self, request: Request) -> int:
        """Return how many of the prompt's first rows may be kept: all, unless overridden."""
        return len(request.prompt)

    def open_draft(self, limits: Limits) -> object:
        """Load what drafts, before the first text; None, unless overridden: there is nothing."""
        return None

    @abstractmethod
    def start(self, request: Request) -> TokenSequence:
        """Return the sequence of a request. An earlier sequence of this decoder must not go on.

        Raises:
            EdgedecError: the prompt is empty or fills the context.
        """

    def generate(self, request: Request) -> Iterator[Token]:
        """Yield the tokens after the prompt until the context is full or the caller closes the iterator.

        Raises:
            EdgedecError: the prompt is empty or fills the context.
            UsageError: another request was started on this decoder, which has one cache, before this one ended.
            DeviceError: the target failed, or returned NaN.
        """
        return Engine(self.target, rows=request.limits.nodes, cost=self.cost).write(self.start(request))

    def begin(self) -> Rounds:
        """Reset the statistics for a new request, and return those of its rounds."""
        self.rounds = Rounds()
        return self.rounds

    def forget(self) -> None:
        """Drop all rows. After an error nothing is known about them: a disk may have lost their values."""
        self.state.truncate(0)
        self.cached = []

    def shared_prefix(self, prompt: I32) -> int:
        """Return the number of rows of ``prompt`` that are in the cache already."""
        return reachable(self.recipe, self.state.reach, common_prefix(prompt.tolist()[:-1], self.cached))

    def keep(self, length: int) -> int:
        """Drop all rows but the first ``length``, or fewer if some of these cannot be kept, and return their number."""
        length = min(length, self.state.length)  # it is less than the ids if a device was lost with the rows
        rows = self.state.truncate(reachable(self.recipe, self.state.reach, length))
        del self.cached[rows:]
        return rows

    def check(self, request: Request) -> None:
        """Check that the prompt fits the context, and that passes have as many rows as the decoder needs.

        Raises:
            EdgedecError: it is empty or leaves no room for an answer.
            UnsupportedError: passes have fewer rows, or log-probabilities of the prompt are asked for, and its rows depend
                on later tokens.
        """
        check_prompt(request.prompt, request.limits)
        check_recipe(self.recipe, self.target.info)
        check_rows(max(self.least_rows, self.recipe.least), request.limits.nodes)
        if request.prompt_logprobs and self.recipe.least > 1:
            raise UnsupportedError(
                f"the rows of this decoder are {self.recipe.name}, so that the tokens of a prompt have no log-probabilities "
                "given those before them; leave them out (echo with logprobs), or use another --decoder"
            )


def check_prompt(prompt: I32, limits: Limits) -> None:
    """Check that a prompt int32 [n] fits the context.

    Raises:
        EdgedecError: it is empty or leaves no room for an answer.
    """
    positions = limits.positions
    if not len(prompt):
        raise EdgedecError("the prompt has no tokens; it must have at least 1")
    if len(prompt) >= positions:
        raise EdgedecError(
            f"the prompt has {len(prompt)} tokens, the context holds {positions}, and the answer needs at least "
            f"one of them; shorten the prompt or give --ctx-size {len(prompt) + 1} or more"
        )


class PromptSequence(ABC):
    """A sequence that first makes the cache hold exactly the prompt without its last token.

    If the request has a ``row_tap``, the cache holds the last token as well, and the sequence ends with the prompt.
    Rows of the common prefix are kept. If the request is interrupted, the rows of finished passes are kept.

    Parameters:
        decoder: has the cache.
        request: the prompt and the settings.

    Members:
        request: the request.
        rounds: statistics of its rounds.
        ended: True once no pass and no token follow.
        reading: True until the prompt is in the cache.
        kept: number of the prompt's rows that were in the cache already.
        prompt_logprobs: log-probabilities of the prompt's tokens after its first, if the request asks for them.
    """

    def __init__(self, decoder: CachedDecoder, request: Request) -> None:
        prompt, limits = request.prompt, request.limits
        self.request, self.rounds = request, decoder.begin()
        self.ended, self.reading = False, True
        self._cached_decoder, self._length = decoder, len(prompt)
        self._ids = np.empty(limits.positions + 1, np.int32)
        self._ids[: len(prompt)] = prompt
        self.prompt_logprobs: list[TokenLogprobs] = []
        self._rows_read = 0  # rows of the last pass over the prompt
        self._waits = False  # True: the room of this step was too small for a pass of the text
        ids = (prompt if request.row_tap else prompt[:-1]).tolist()
        self._rows_to_read = len(ids) if request.row_tap else decoder.recipe.whole(len(ids))
        common = 0 if request.reads_all else min(common_prefix(ids, decoder.cached), decoder.known_rows(request))
        self.kept = decoder.keep(common)  # fewer if a window or a recurrence has lost rows, which then run again
        self._snapshots_at: set[int] = set()
        for length in (decoder.recipe.whole(common), decoder.branch, self._rows_to_read):
            if length >= self.kept + _LEAST_SNAPSHOT:
                self.keep_snapshot(length)
        decoder.branch = 0

    @property
    def state(self) -> State:
        """The cache."""
        return self._cached_decoder.state

    @property
    def text(self) -> I32:
        """The prompt and the tokens after it, int32 [t]: a view of the sequence's own array."""
        return self._ids[: self._length]

    def keep_snapshot(self, length: int) -> None:
        """Keep a snapshot of recurrent states after ``length`` rows of the prompt, with which other prompts begin."""
        if isinstance(self.state, SnapshotState) and length > self.state.length:
            self._snapshots_at.add(length)

    @property
    def least_rows(self) -> int:
        """Number of rows that the next pass needs at least."""
        return self._cached_decoder.recipe.least if self.reading else self._cached_decoder.least_rows

    @property
    def unread(self) -> int:
        """Number of the prompt's tokens whose rows are not in the cache yet, without its last token if a text follows."""
        return max(0, self._rows_to_read - self.state.length) if self.reading else 0

    def next_pass(self, room: Room) -> Drafting[Pass | None]:
        """Return the next pass of at most ``room.rows`` rows; None if none is needed now, or the sequence has ended.

        Raises:
            UsageError: another request was started on the decoder before this one ended.
        """
        if self._cached_decoder.rounds is not self.rounds:
            raise UsageError(
                "another answer was started before this one ended; read an answer to its end, or close it, before "
                "you start the next"
            )
        if self.reading:
            work = yield from self._prompt_pass(room.rows)
            if self.reading:
                return work
        self._waits = room.rows < self.least_rows  # the room was that of a pass over the prompt
        return None if self.ended or self._waits else (yield from self.next_tree(room))

    def _prompt_pass(self, rows: int) -> Drafting[Pass | None]:
        """Return the next pass over the prompt; None if the cache holds all of it, or the sequence has ended.

        A draft model reads along, so that it does not read a long prompt at once while other texts wait.
        """
        request, start, total = self.request, self.state.length, self._rows_to_read
        if start < total:
            request.on_prefill(start, total)
            if request.interrupted():
                self.ended = True
                return None
        elif request.row_tap:
            request.on_prefill(start, total)
            self.ended = True
            return None
        if request.row_tap:
            return self._rows_pass(start, min(rows, request.limits.nodes))
        most = min(rows, request.limits.nodes)
        draft_read = yield from self.read_draft(request.limits.nodes)
        if start == total:
            if draft_read:
                self.reading = False
                yield from self.begin_text()  # first, because posted passes may still run
                request.on_prefill(start, total)  # even if no pass was needed, so that a progress bar ends
            elif request.interrupted():
                self.ended = True
            return None
        if request.prompt_logprobs:
            most = min(most, request.tree_nodes or most)  # memory is planned for so many rows of logits
        return self._rows_pass(start, most)

    def _rows_pass(self, start: int, most: int) -> Pass:
        """Return a pass over at most ``most`` rows of the prompt from ``start`` on."""
        request = self.request
        stop = min((length for length in self._snapshots_at if length > start), default=self._rows_to_read)
        work = self._cached_decoder.recipe.rows_pass(self._ids[: min(stop, self._rows_to_read)], start, most)
        self._rows_read = len(work.ids)
        if request.prompt_logprobs:
            work = replace(work, logits=np.arange(len(work.ids), dtype=np.int32))
        if taps := dict.fromkeys([*self.prompt_taps, *([request.row_tap] if request.row_tap else [])]):
            work = replace(work, taps=tuple(taps))
        return work

    @property
    def prompt_taps(self) -> tuple[str, ...]:
        """Names of the values that ``take_taps`` gets for each row of the prompt; none, unless overridden."""
        return ()

    def take_taps(self, ids: I32, taps: Mapping[str, F32]) -> None:
        """Take the values of the last rows of ``ids``, the prompt's beginning. This does nothing, unless overridden."""
        return None

    def write_rounds(
        self, target: Target, sequences: Sequence[TokenSequence], rooms: Sequence[Room]
    ) -> Sequence[WrittenRounds | Exception] | None:
        """Return None: rounds do not run in the compiled loop, unless overridden."""
        return None

    def take(self, result: PassResult | None) -> list[Token]:
        """Take the result of the last pass, or None if ``next_pass`` returned none, and return the tokens that follow."""
        if self.ended or self._waits:
            return []
        if self.reading:
            if result is not None:
                self._keep_rows(result)
            return []
        tokens = self.accept(result)
        for token in tokens:
            self._ids[self._length], self._length = token.id, self._length + 1
        self.ended = self.ended or self._length > self.request.limits.positions  # the last token needs no row
        return tokens

    def _keep_rows(self, result: PassResult) -> None:
        """Commit the rows of a pass over the prompt."""
        start, rows = self.state.length, self._rows_read
        following = self._ids[start + 1 : start + 1 + rows].tolist()
        if self.request.prompt_logprobs and self.request.logprobs is not None:
            for end, (row, token) in enumerate(zip(result.logits, following, strict=False), start + 1):
                self.prompt_logprobs.append(self.request.logprobs(row, token, self._ids[:end], None))
        if self.request.on_rows is not None:
            self.request.on_rows(result.taps[self.request.row_tap])
        self.state.commit(np.arange(rows, dtype=np.int32))
        self._cached_decoder.cached += self._ids[start : start + rows].tolist()
        if self.prompt_taps:
            self.take_taps(self._ids[: start + rows], {name: result.taps[name] for name in self.prompt_taps})
        if start + rows in self._snapshots_at and isinstance(self.state, SnapshotState):
            self.state.snapshot()

    def choose(self, row: F32, text: I32) -> int:
        """Return the token after ``text`` that follows from logits ``row`` and the random number of its position."""
        request = self.request
        if request.likeliest is not None:
            return request.likeliest(row, text)
        return request.random.token(request.processor(row, text), request.dropped + len(text))

    def logprobs(self, row: F32, token: int, text: I32, top: RowLikeliest | None = None) -> TokenLogprobs | None:
        """Return the log-probability of ``token`` after ``text``; None if it is not asked for.

        Args:
            row: logits after the text.
            token: the token.
            text: the text.
            top: the likeliest tokens of the row, if the pass returned them in place of whole rows.
        """
        return None if self.request.logprobs is None else self.request.logprobs(row, token, text, top)

    @property
    def drafts_ahead(self) -> bool:
        """False: nothing is done while a pass runs."""
        return False

    def draft_ahead(self) -> Drafting[None]:
        """Do nothing while a pass runs."""
        yield from ()

    @abstractmethod
    def read_draft(self, rows: int) -> Drafting[bool]:
        """Let a draft model read at most ``rows`` rows of the prompt; return True once it needs no further call."""

    @abstractmethod
    def begin_text(self) -> Drafting[None]:
        """Prepare the first round, after the prompt was read."""

    @abstractmethod
    def next_tree(self, room: Room) -> Drafting[Pass | None]:
        """Return the pass of the next round; None if this round needs none."""

    @abstractmethod
    def accept(self, result: PassResult | None) -> list[Token]:
        """Return the tokens of a round, and commit their rows."""
