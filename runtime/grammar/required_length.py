"""The length of the texts that a lexer requires, as far as a grammar says it by counts: ``(xy){100000}``.

A text that is required is followed to its end when it begins, with a state of the lexer of about 550 bytes for each byte,
and no limit of llguidance bounds that. So it is bounded before a grammar is compiled. Rules, other than terminals, are
followed by the parser, whose rows are bounded.

The expressions below match to the end of a text where something is not closed, so that their work is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from edgedec.errors import UsageError

__all__ = ["LIMIT_REQUIRED", "check_required", "lark_length", "regex_length"]

LIMIT_REQUIRED = 16_384  # characters
_MOST = 10**12  # characters; counts in counts are not computed further

# A part is a number of characters, or one of these.
_OPEN, _CLOSE, _OR = "(", ")", "|"
_Part = (
    int | str | tuple[int]
)  # characters; one of the above, or the name of a terminal; how often the part before it comes

_REGEX = re.compile(
    r"\(\?[a-zA-Z-]+\)"  # flags
    r"|(?P<open>\((?:\?(?:[a-zA-Z-]*:|P?<\w+>))?)|(?P<close>\))|(?P<or>\|)"
    r"|\{(?P<count>\d+)(?:,\d*)?\}"
    r"|(?P<item>\\(?:[pPxuU]\{[^}]{0,64}\}|.)|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*(?:\]|\\?\Z)|[^*+?])",
    re.DOTALL,
)
_LARK = re.compile(
    r"(?P<text>\"(?:\\.|[^\"\\])*(?:\"i?|\\?\Z))|(?://|\#)[^\n]*|/(?P<regex>(?:\\.|[^/\\])+)(?:/[a-z]*|\\?\Z)"
    r"|(?P<defined>(?:(?<=\n)|^)[ \t]*[?!]*[a-zA-Z_]\w*(?:\[[^\]\n]*\]|\.\d+)*[ \t]*:)"
    r"|(?P<name>[a-zA-Z_]\w*)|(?P<open>[(\[])|(?P<close>[)\]])|(?P<or>\|)"
    r"|(?:\{|~[ \t]*)(?P<count>\d+)|.",
    re.DOTALL,
)


def check_required(length: int, what: str) -> None:
    """Check the length of a required text.

    Raises:
        UsageError: it is too long; the message begins with ``what``.
    """
    if length > LIMIT_REQUIRED:
        shown = f"{length:,}" if length < _MOST else f"{_MOST:,} or more"
        raise UsageError(
            f"{what} requires a text of {shown} characters; at most {LIMIT_REQUIRED:,} are supported, so make the text or "
            "its counts smaller"
        )


def regex_length(pattern: str) -> int:
    """Return an upper bound of the characters that a regular expression requires: those of its longest alternative."""
    return _length(_regex_parts(pattern))


def lark_length(text: str) -> int:
    """Return an upper bound of the characters that a text, an expression or a terminal of a grammar requires, at most.

    Args:
        text: a grammar in the notation of Lark, without the JSON values in it.
    """
    terminals: dict[str, list[_Part]] = {}
    longest, name, parts = 0, "", list[_Part]()
    for match in _LARK.finditer(text):
        if defined := match["defined"]:
            name = re.split(r"[\[.:]", defined.strip(" \t?!"))[0].strip()
            parts = terminals.setdefault(name, [])
        elif match["text"] is not None or match["regex"] is not None:
            size = len(match["text"]) - 2 if match["regex"] is None else regex_length(match["regex"])
            longest = max(longest, size)
            parts.append(size)
        elif match["name"]:
            parts.append(match["name"] if match["name"].isupper() else 0)
        else:
            parts += _structure(match)
    sizes: dict[str, int] = {}
    for name in [name for name in terminals if name.isupper()]:
        longest = max(longest, _terminal(name, terminals, sizes))
    return longest


def _terminal(start: str, terminals: dict[str, list[_Part]], sizes: dict[str, int]) -> int:
    """Return the length of a terminal, those that it refers to first. One that refers to itself is refused elsewhere."""
    pending = [start]
    while pending:
        name = pending[-1]
        if name not in sizes:
            sizes[name] = 0
            inner = [
                part for part in terminals[name] if isinstance(part, str) and part in terminals and part not in sizes
            ]
            pending += inner
            if inner:
                continue
        pending.pop()
        sizes[name] = _length(
            sizes.get(part, 0) if isinstance(part, str) and part not in (_OPEN, _CLOSE, _OR) else part
            for part in terminals[name]
        )
    return sizes[start]


def _regex_parts(pattern: str) -> Iterator[_Part]:
    for match in _REGEX.finditer(pattern):
        if match["item"]:
            yield match["item"] not in "^$"
        else:
            yield from _structure(match)


def _structure(match: re.Match[str]) -> list[_Part]:
    if match["open"]:
        return [_OPEN]
    if match["close"]:
        return [_CLOSE]
    if match["or"]:
        return [_OR]
    return [(int(match["count"][:12]),)] if match["count"] else []


def _length(parts: Iterable[_Part]) -> int:
    """Return the characters of a sequence: sums of its items, products with counts, and the longest of alternatives."""
    best, before, last = 0, 0, 0  # the longest alternative, the present one before its last item, and this item
    outer: list[tuple[int, int, int]] = []
    for part in parts:
        if part == _OPEN:
            outer.append((best, before + last, 0))
            best = before = last = 0
        elif part == _CLOSE and outer:
            whole = max(best, before + last)
            best, before, _ = outer.pop()
            last = whole
        elif part == _OR:
            best, before, last = max(best, before + last), 0, 0
        elif isinstance(part, tuple):
            last = min(last * part[0], _MOST)
        elif isinstance(part, int):
            before, last = before + last, part
    while outer:  # an unbalanced expression, which is refused elsewhere
        best, before, last = max(outer[-1][0], outer[-1][1] + max(best, before + last)), 0, 0
        outer.pop()
    return max(best, before + last)
