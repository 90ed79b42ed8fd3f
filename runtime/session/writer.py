"""A writer turns the tokens of one answer into text, ends the answer, and measures it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edgedec.runtime.driver.counters import Counters
from edgedec.runtime.protocols import Token
from edgedec.runtime.session.answer import Answer, Piece, StopReason
from edgedec.runtime.text.stream import TextStream

if TYPE_CHECKING:
    from edgedec.runtime.base.key_counts import KeyCounts
    from edgedec.runtime.base.stream_counts import StreamTimings
    from edgedec.runtime.capabilities import WeightReads

__all__ = ["Account", "AnswerWriter"]


class Account:
    """Times and counters noted while an answer is written.

    They are the host's clock in seconds, an accelerator's counters, the disk's part, and the keys that queries chose.

    Parameters:
        counters: returns the accelerator's counters.
        stream: reads weights from the disk during passes; None: all of them are in memory.
        keys: returns the counts of keys; None as its result: queries choose none.

    Members:
        reads: a part of the prompt was noted.
        has_read: the whole prompt was.
    """

    def __init__(
        self,
        counters: Callable[[], Counters],
        stream: WeightReads | None = None,
        keys: Callable[[], KeyCounts | None] = lambda: None,
    ) -> None:
        self._counters, self._stream, self._key_counts = counters, stream, keys
        self._streamed = None if stream is None else stream.counts
        self._keys = keys()
        self.at_start = self.at_prompt = self.at_first = Counters()
        self.began = self.first = self.ended = 0.0
        self.reads = self.has_read = False

    def begin(self) -> None:
        """Note the begin of the prompt."""
        self.at_start = self.at_prompt = self.at_first = self._counters()
        self._streamed = None if self._stream is None else self._stream.counts
        self._keys = self._key_counts()
        self.began = self.first = time.perf_counter()

    def prompt_read(self, *, whole: bool) -> None:
        """Note that the prompt, or a part of it, is in the cache, or is going to be there.

        The counters of a part would wait for the passes of an accelerator, which run while the host prepares the next ones.
        """
        self.reads, self.has_read = True, whole
        if whole:
            self.at_prompt = self._counters()

    def first_token(self) -> None:
        """Note the first token."""
        self.first, self.at_first = time.perf_counter(), self._counters()

    def end(self) -> None:
        """Note the last token. Only the first call has an effect."""
        self.ended = self.ended or time.perf_counter()

    @property
    def disk(self) -> StreamTimings | None:
        """The disk's part since the begin; None if all weights are in memory."""
        if self._stream is None or self._streamed is None:
            return None
        return self._stream.timings(self._streamed)

    @property
    def keys(self) -> KeyCounts | None:
        """The keys that queries saw and read since the begin; None if they read all."""
        counts = self._key_counts()
        return None if counts is None or self._keys is None else counts - self._keys


class AnswerWriter:
    """An answer that is being written.

    Parameters:
        answer: the answer, which is filled in.
        account: notes the times.
        text: makes text of ids.
        n_predict: maximum number of tokens; negative: until the context is full.
        ends: ids of end tokens.
        interrupted: called after each token; True ends the answer.
        complete: called with the ids of the answer after each token; True ends the answer, because its grammar allows
            nothing further. None: there is no grammar.

    Members:
        pieces: parts of the text that nobody has read yet.
        ended: True once no further token is taken.
    """

    def __init__(
        self,
        answer: Answer,
        account: Account,
        text: TextStream,
        *,
        n_predict: int,
        ends: Sequence[int],
        interrupted: Callable[[], bool],
        complete: Callable[[Sequence[int]], bool] | None = None,
    ) -> None:
        self.answer, self.account = answer, account
        self._text, self._n_predict, self._ends, self._interrupted = text, n_predict, ends, interrupted
        self._complete = complete
        self.pieces: deque[Piece] = deque()
        self.ended = False
        self._guessed = False

    def take(self, tokens: Sequence[Token]) -> None:
        """Add the tokens of a step, up to the one that ends the answer."""
        answer = self.answer
        for token in tokens:
            if self.ended:
                return
            if not answer.tokens:
                self.account.first_token()
            answer.tokens.append(token.id)
            answer.drafted.append(token.guessed)
            if token.logprobs is not None:
                answer.logprobs.append(token.logprobs)
            self._guessed = token.guessed
            if token.id in self._ends:
                self.end("eos")
                return
            self._add(self._text.feed(token.id))
            if self._text.stopped:
                self.end("stop")
            elif self._complete is not None and self._complete(answer.tokens):
                self.end("grammar")
            elif len(answer.tokens) == self._n_predict:
                self.end("limit")
            elif self._interrupted():
                self.end("interrupted")

    def _add(self, text: str) -> None:
        if text:
            self.answer.text += text
            self.pieces.append(Piece(text, guessed=self._guessed, tokens=len(self.answer.tokens)))

    def cancel(self) -> None:
        """End the answer as interrupted, without the text that is held back. After its end this does nothing."""
        if not self.ended:
            self.ended, self.answer.stop_reason = True, "interrupted"
            self.account.end()

    def end(self, reason: StopReason) -> None:
        """End the answer for a reason. Only the first call has an effect."""
        if self.ended:
            return
        self.ended, self.answer.stop_reason = True, reason
        self.account.end()
        self._add(self._text.finish())
