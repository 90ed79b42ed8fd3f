"""The origin of each character of a rendered conversation: the chat template, or a text that somebody else wrote.

A template writes the control tokens that begin and end turns. If a message contains the text of one (``<|im_end|>``), the
tokenizer would take it for the template's own, and whoever wrote the message could forge a turn. So a conversation is
rendered a second time, with every character of its texts replaced by a *letter*, a code point that occurs nowhere else.
Where the second rendering has a letter, the first one has a character of a message.

A template must not notice the difference. It meets letters as ``OutsideText``, which compares as the text that it stands
for (``'</think>' in content`` holds), and what a method or a filter makes of it is compared with what it makes of the plain
text (``Letters.settle``).

Source: derived here. llama.cpp (``common/jinja``) marks the inputs of its own interpreter to the same end; transformers
(``sanitize_control_tokens``) marks whole control tokens within inputs before it renders them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from edgedec.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Letters", "OutsideMessage", "OutsideText", "RenderedText", "strings"]

_CODE_POINTS = range(0x40000, 0xE0000)  # planes without a character
_ASCII = [*map(chr, range(0x21, 0x7F))]  # printable characters, into which a template may change others
_KEPT = frozenset(['"', "\\", *map(chr, range(0x20))])  # JSON writes these differently
ROLES = frozenset(["system", "developer", "user", "assistant", "tool", "function", "model", "ipython"])


class OutsideMessage(dict[str, Any]):
    """A message of a conversation whose control tokens are text. Its role is the template's if it is a usual one."""


class RenderedText(str):
    """A rendered conversation that knows which of its characters come from messages.

    Parameters:
        text: the rendered text.
        masked: the same text with NUL in place of each character of a message.
        traced: False if the template has noticed the letters, so that ``masked`` is another text, which has the control
            tokens of the template.
        unmarked: the texts of the messages, one after the other, if the template cannot be rendered with letters, so that
            ``masked`` says nothing; None if it can.
    """

    masked: str
    traced: bool
    unmarked: str | None

    def __new__(cls, text: str, masked: str, *, traced: bool, unmarked: str | None = None) -> Self:
        rendered = super().__new__(cls, text)
        rendered.masked, rendered.traced, rendered.unmarked = masked, traced, unmarked
        return rendered

    def cut(self, start: int, stop: int) -> RenderedText:
        """Return the characters from ``start`` to ``stop``. An untraced text keeps the whole of ``masked``."""
        return RenderedText(
            self[start:stop],
            self.masked[start:stop] if self.traced else self.masked,
            traced=self.traced,
            unmarked=self.unmarked,
        )

    def followed_by(self, text: str) -> RenderedText:
        """Return the conversation with a further text of the template's."""
        return RenderedText(self + text, self.masked + text, traced=self.traced, unmarked=self.unmarked)


class OutsideText(str):
    """A text of letters, which compares as the text that it stands for."""

    _letters: ClassVar[Letters]

    @cached_property
    def _plain(self) -> str:
        return self._letters.plain(self)

    def lower(self) -> str:
        """Return the text in lower case, by which Jinja sorts."""
        return self._letters.text(self._plain.lower())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self._plain == self._letters.plain(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._plain)

    def __lt__(self, other: str) -> bool:
        return self._plain < self._letters.plain(other)

    def __gt__(self, other: str) -> bool:
        return self._plain > self._letters.plain(other)

    def __contains__(self, part: object) -> bool:
        return isinstance(part, str) and self._letters.plain(part) in self._plain


class Letters:
    """A one-to-one map of the characters of texts to code points that nothing else in a rendering has.

    Blanks, ``"``, the backslash and control characters have no letter, because templates and JSON treat them by what they
    are; every control token has other characters.

    Parameters:
        texts: JSON data with the texts.
        others: further texts of the rendering: the template, and what it inserts.

    Raises:
        UsageError: the texts have so many different characters that no code points are left.
    """

    def __init__(self, texts: Any, *others: str) -> None:
        characters = set[str](_ASCII).union(*strings(texts))
        characters.update(*(one.upper() + one.lower() + one.title() for one in characters))
        taken = {ord(character) for character in characters.union(*others)}
        own = sorted(one for one in characters if not (one.isspace() or one in _KEPT))
        free = [*islice((code for code in _CODE_POINTS if code not in taken), len(own))]
        if len(free) < len(own):
            raise UsageError("the conversation has too many different characters; shorten it")
        self._letter = {ord(character): code for character, code in zip(own, free, strict=True)}
        self._character = {code: character for character, code in self._letter.items()}
        self._text: type[OutsideText] = type("OutsideText", (OutsideText,), {"_letters": self})

    def plain(self, text: str) -> str:
        """Return a text with the characters that its letters stand for."""
        return str(text) if text.isascii() else text.translate(self._character)

    def masked(self, text: str) -> str:
        """Return a text with NUL in place of each letter, which takes less memory."""
        return text.translate(dict.fromkeys(self._character, "\0"))

    def text(self, plain: str) -> OutsideText:
        """Return a text in letters."""
        return self._text(plain.translate(self._letter))

    def data(self, value: Any) -> Any:
        """Return JSON data with all its texts in letters, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.data(one) for one in value]
        return {self.data(key): self.data(one) for key, one in value.items()} if isinstance(value, dict) else value

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message with its texts in letters. A usual role stays, because templates make control tokens of it."""
        known = isinstance(role := message.get("role"), str) and role in ROLES
        return {name: one if known and name == "role" else self.data(one) for name, one in message.items()}

    def wrap(self, value: Any) -> Any:
        """Return a result with ``OutsideText`` where it has letters."""
        if isinstance(value, str) and not isinstance(value, OutsideText) and not value.isascii():
            return self._text(value)
        return value

    def unwrap(self, value: Any) -> Any:
        """Return an argument in plain characters."""
        if isinstance(value, str):
            return self.plain(value)
        return type(value)(map(self.unwrap, value)) if isinstance(value, list | tuple) else value

    def settle(self, value: Any, plain: Any) -> Any:
        """Return the result of an operation on letters, given that on plain texts, which decides what it is.

        If they differ, the operation looked at the characters, and the whole plain text counts as a message's.
        """
        if isinstance(plain, str):
            same = isinstance(value, str) and self.plain(value) == plain
            return self.wrap(value) if same else self.text(plain)
        if isinstance(plain, list | tuple):
            same = isinstance(value, list | tuple) and len(value) == len(plain)
            values = value if same else [None] * len(plain)
            return type(plain)(self.settle(one, other) for one, other in zip(values, plain, strict=True))
        return plain if plain is None or isinstance(plain, bool | int | float) else value


def strings(value: Any) -> Iterator[str]:
    """Yield all texts of JSON data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from strings(one)
