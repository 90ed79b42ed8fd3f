"""A conversation with a model: its turns, the prompt made of them, and the choice of the turns that fit the context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgedec.errors import EdgedecError
from edgedec.runtime.protocols import I32
from edgedec.runtime.text.tokenizer import check_unicode

if TYPE_CHECKING:
    from edgedec.runtime.session.session import Session

__all__ = ["NEARLY_FULL", "Conversation", "Turn"]

NEARLY_FULL = 0.8  # share of the context that a prompt may take; the rest is for the answer
# Share of the context to keep when turns are dropped. If only as many were dropped as necessary, every further message would
# drop turns, and the whole prompt would have to be read again each time.
_HALF = 0.5


_PROBE = "Hello"  # a message like any other


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A message and its answer."""

    message: str
    answer: str


class Conversation:
    """The turns of one conversation in a session.

    If the model has no chat template the prompt is plain text: one line for each message and each answer.

    Args:
        session: the model.
        system: a message before all turns, which is never dropped.
        shift: drop the oldest turns, as a whole, if the next prompt would take more than ``NEARLY_FULL`` of the context.
            Otherwise a prompt that does not fit is refused.
        sanitize: control tokens in messages are text. In plain text, without a template, they are tokens in any case.
        template: source of a chat template in place of the model's own; None: its own.
    """

    def __init__(
        self,
        session: Session,
        *,
        system: str | None = None,
        shift: bool = True,
        sanitize: bool = True,
        template: str | None = None,
    ) -> None:
        self.session, self.system, self.shift, self._sanitize = session, system, shift, sanitize
        self._template = session.bundle.chat_template if template is None else template
        self.reset()

    def reset(self) -> None:
        """Remove all turns."""
        self.turns: list[Turn] = []
        self.dropped = 0  # turns dropped since the last reset
        self.dropped_tokens = 0  # difference between positions in the conversation and in its prompt
        self._written = 0  # position in the conversation after the last answer
        self.used = 0  # tokens of the last prompt and its answer
        self._before = (0, 0)  # the two of the turn before the last one

    @property
    def size(self) -> int:
        """Size of the context in tokens."""
        return self.session.run.limits.positions

    @property
    def nearly_full(self) -> bool:
        """True if the last turn reached the share ``NEARLY_FULL`` of the context."""
        return self.used >= NEARLY_FULL * self.size

    @property
    def is_plain(self) -> bool:
        """True if the model has no chat template."""
        return self._template is None

    def check_system(self) -> None:
        """Check the system message, so that not every message fails because of it.

        Raises:
            UsageError: it is not valid Unicode.
            EdgedecError: the template refuses a conversation with it, and takes the same one without.
        """
        if not self.system:
            return
        check_unicode(self.system)
        try:
            self._text([], _PROBE)
        except EdgedecError:
            try:
                self.session.render_chat([{"role": "user", "content": _PROBE}], template=self._template)
            except EdgedecError:
                return  # it takes no conversation at all, which the first message tells better
            raise

    def ask(self, message: str) -> tuple[I32, int]:
        """Return the prompt that ends with ``message``, int32 [n], and the number of turns that were dropped for it.

        Raises:
            UsageError: the message is not valid Unicode.
            EdgedecError: the message does not fit the context, or, without ``shift``, the conversation with it does not, or
                the template refuses it. The conversation is unchanged then.
        """
        check_unicode(message)  # here, so that the position counts in the message and not in the rendered prompt
        ids = self._encode(self.turns, message)
        if self.shift and self.turns and not _fits(ids, int(NEARLY_FULL * self.size)):
            alone = self._encode([], message)
            self._require(alone, [], message)
            drop = self._least_to_drop(message)
            self.turns = self.turns[drop:]
            self.dropped += drop
            ids = self._require(self._encode(self.turns, message), self.turns, message)
            # The answer goes on where the last one ended, whatever was dropped: no position serves twice.
            self.dropped_tokens = max(self.dropped_tokens, self._written - len(ids))
            return ids, drop
        return self._require(ids, self.turns, message), 0

    def answered(self, message: str, answer: str, *, used: int) -> None:
        """Append a turn. ``used`` is the number of tokens of its prompt and its answer."""
        self._before = self._written, self.used
        self.turns.append(Turn(message=message, answer=answer))
        self.used = used
        self._written = self.dropped_tokens + used

    def go_on(self, *, system: str | None, turns: Sequence[Turn]) -> None:
        """Take another system message and other turns in place of these.

        Raises:
            UsageError: a text is not valid Unicode.
            EdgedecError: the template refuses them. The conversation is unchanged then.
        """
        for text in (system or "", *(part for turn in turns for part in (turn.message, turn.answer))):
            check_unicode(text)
        before, self.system = self.system, system or None
        try:
            self._text(turns, _PROBE)
        except EdgedecError:
            self.system = before
            raise
        if turns is not self.turns:
            self.reset()
            self.turns = list(turns)

    @contextmanager
    def without_last(self) -> Iterator[str]:
        """Yield the message of the last turn, which is taken out. The turn returns if the body adds none."""
        kept = self.turns, self.dropped, self.dropped_tokens, self._written, self.used, self._before
        turn, self.turns = self.turns[-1], self.turns[:-1]
        self._written, self.used = self._before
        ends = len(self.turns) + self.dropped
        try:
            yield turn.message
        finally:
            if len(self.turns) + self.dropped == ends:
                self.turns, self.dropped, self.dropped_tokens, self._written, self.used, self._before = kept

    def _least_to_drop(self, message: str) -> int:
        """Return the smallest number of turns to drop so that the prompt takes half of the context, or else 80 %."""
        for share in (_HALF, NEARLY_FULL):
            low, high = 1, len(self.turns)  # bisection, because more turns make a longer prompt
            while low < high:
                middle = (low + high) // 2
                if _fits(self._encode(self.turns[middle:], message), int(share * self.size)):
                    high = middle
                else:
                    low = middle + 1
            if _fits(self._encode(self.turns[low:], message), int(share * self.size)):
                return low
        return len(self.turns)

    def _require(self, ids: I32 | None, turns: Sequence[Turn], message: str) -> I32:
        if _fits(ids, self.size - 1):
            assert ids is not None
            return ids
        length = f"{len(self._text(turns, message)):,} characters" if ids is None else f"{len(ids)} tokens"
        if turns:
            raise EdgedecError(
                f"the conversation and this message take {length}, the context holds {self.size} tokens; leave out "
                "--no-context-shift, so that the oldest turns are dropped, or raise --ctx-size"
            )
        more = " with the system message" if self.system else "" if self.is_plain else " with the template's additions"
        raise EdgedecError(
            f"the message takes {length}{more}, the context holds {self.size} tokens and needs one for the answer; shorten "
            "it or raise --ctx-size"
        )

    def _messages(self, turns: Sequence[Turn], message: str) -> list[dict[str, str]]:
        messages = [] if not self.system else [{"role": "system", "content": self.system}]
        for turn in turns:
            messages.append({"role": "user", "content": turn.message})
            messages.append({"role": "assistant", "content": turn.answer})
        return [*messages, {"role": "user", "content": message}]

    def _text(self, turns: Sequence[Turn], message: str) -> str:
        messages = self._messages(turns, message)
        if self.is_plain:
            return "".join(f"{entry['content']}\n" for entry in messages)
        return self.session.render_chat(messages, sanitize=self._sanitize, template=self._template)

    def _encode(self, turns: Sequence[Turn], message: str) -> I32 | None:
        """Return the ids of the prompt; None if it is so long that it cannot fit, whatever the tokenizer."""
        text = self._text(turns, message)
        if not self.session.may_fit(text):
            return None
        return self.session.encode(text) if self.is_plain else self.session.tokenizer.encode_rendered(text)


def _fits(ids: I32 | None, most: int) -> bool:
    return ids is not None and len(ids) <= most
