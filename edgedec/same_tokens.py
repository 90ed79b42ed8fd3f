"""Texts on which tokenizers differ, and a comparison of two tokenizers on them.

What writes a tokenizer for another program reads it back and compares, because a tokenizer that is read differently changes
every answer without a sign.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from tokenizers import Tokenizer

__all__ = ["TEXTS", "Difference", "added_texts", "first_difference"]

# Plain text, blanks and lines, case, accents composed and decomposed, compatibility forms, other scripts, emoji of several
# characters, control characters, tokens of other models, code.
_HAND_WRITTEN = (
    "Once upon a time",
    "",
    "a",
    "KINGS and queens",
    "Hello, World!",
    "the cat category",
    "iPhone XMLHttpRequest aB Ab",
    "  two  blanks, and a tab\there ",
    "one\n\ntwo\r\nthree\n",
    "\r",
    "a\rb",
    "a\n b",
    "a \nb",
    "a\n\n\n  b\n",
    "\n",
    "\r\n\r\n",
    "\ta\t\tb",
    " \n \n ",
    "a\t\n\tb",
    "a\u00a0b",
    "a\u2003b\u3000c",
    "\u00a0 x",
    "a\u2028b\u2029c",
    "a\u000bb\u000cc\u0085d",
    "It's 12345.6 and 1,000,000; don't I'LL they've",
    "3.14e-10",
    "1/2 + 3/4",
    "v1.2.3-rc4",
    "0x7fFF",
    "\u00bd \u00b2 \u2460 \u2163 \u0663",
    "na\u00efve fa\u00e7ade \u00dcn\u00efcode",
    "e\u0301 o\u0308 n\u0303",
    "\u00e9",
    "\u1e9b\u0323",
    "\u212b \u2126 K\u212a",
    "\ufb01 \ufb03 \u2122",
    "\u0130i\u0131I",
    "\uff21\uff22 \uff11\uff12",
    "\u1100\u1161\u11a8 \uac01",
    "\u0915\u093c \u0958",
    "\u00df \u1e9e SS",
    "\u01c5 \u02bb\u0250",
    "'\u017f x'\u017f",
    "a\u0300\u0316b",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
    "\u4e2d\u6587\uff0c\u6d4b\u8bd5\u3002",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627",
    "\u0939\u093f\u0928\u094d\u0926\u0940",
    "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac \u03a3\u03c2\u03c3",
    "\u0420\u0443\u0441\u0441\u043a\u0438\u0439 \u0451",
    "\u05e2\u05d1\u05e8\u05d9\u05ea",
    "\u0e44\u0e17\u0e22",
    "\U0001f642",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "\U0001f1e9\U0001f1ea",
    "\U0001f44d\U0001f3fd a",
    "\u2764\ufe0f",
    "a\u200bb\u200cc\u200dd",
    "\ufeffa",
    "\u202eabc\u202c",
    "a\x00b\x7f",
    "".join(map(chr, range(1, 32))),
    "\x1b[0m",
    "\u0378\ue000\U000f0000",
    "\U00010400\U0001d400",
    "\ufffd\ufffe",
    "".join(map(chr, range(33, 127))),
    "".join(map(chr, range(161, 256))),
    "".join(map(chr, range(0x100, 0x800, 31))),
    "".join(map(chr, range(0x800, 0xD800, 977))),
    "".join(map(chr, range(0xE000, 0x10000, 331))),
    "".join(map(chr, range(0x10000, 0x110000, 40961))),
    "<s> </s> <|im_start|>user<|im_end|> [INST] <unk>",
    "<|endoftext|>",
    "a</s>b",
    "<s>",
    "<0x41>",
    "[PAD1]",
    "<pad>",
    "<eos>",
    "\u2581",
    "\u2581a\u2581 b",
    "\u0120a",
    "a\u010a",
    "##ing",
    "a</w>",
    "@@ b",
    "snake_case kebab-case C++ f(x) = x^2;",
    "def f(a, b=[]):\n    return {'k': a[0]}  # x\n",
    "for (int i=0;i<n;++i) {\n\ta[i]+=1;\n}",
    '{"a": [1, 2.5, null], "b": "\\n"}',
    "<div class='x'>&amp;</div>",
    "https://example.com/a?b=c&d=%20#e",
    "$x$ \\frac{a}{b}",
    "a@b.co",
    "SELECT * FROM t;",
    "...",
    "!!!",
    "?!?!",
    "---",
    "a--b",
    "\u2026 \u2014 \u201cq\u201d",
    "((()))",
    "##",
    "/*",
    "//\n",
    "=>\n\n",
    "a.b.c.",
    "!\n!",
    ", ,",
    "\u3002\uff01",
    "_ __ ___",
    "~`^|",
)
_ENDINGS = ("s", "t", "re", "ve", "m", "ll", "d")
_DIGITS = "123456789012"


def _products() -> Iterable[str]:
    for end, quote in product(_ENDINGS, "'\u2019"):
        yield f"I{quote}{end} you{quote}{end}x"
        yield f"I{quote}{end.upper()} '{end.capitalize()}"
    for count in range(1, len(_DIGITS) + 1):
        yield _DIGITS[:count]
        yield f"a {_DIGITS[:count]}b {_DIGITS[:count]}."
    for blank, count in product(" \t\n", (1, 2, 3, 4, 7, 8, 16)):
        blanks = blank * count
        yield from (blanks, f"{blanks}a", f"a{blanks}b", f"b{blanks}", f"a.{blanks}(b){blanks}1")


# The first one is plain; the order is fixed.
TEXTS: tuple[str, ...] = tuple(dict.fromkeys([*_HAND_WRITTEN, *_products()]))


class Difference(NamedTuple):
    """A text that two tokenizers cut differently. ``None``: one of them refuses the text."""

    text: str
    ids: list[int] | None
    other: list[int] | None

    def __str__(self) -> str:
        """Return the text and both lists of ids in one line, from where they begin to differ."""
        ids, other = self.ids or [], self.other or []
        same = next(
            (at for at, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), min(len(ids), len(other))
        )
        start = max(0, same - 2)
        shown = [_shown(one, start) for one in (self.ids, self.other)]
        return f"{_short(self.text)} would be {shown[1]} instead of {shown[0]}"


def _short(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}..."


def _shown(ids: list[int] | None, start: int) -> str:
    if ids is None:
        return "refused"
    some = ", ".join(map(str, ids[start : start + 8]))
    return f"[{'..., ' if start else ''}{some}{', ...' if len(ids) > start + 8 else ''}]"


def added_texts(tokenizer: Tokenizer) -> list[str]:
    """Return texts around each added token of a tokenizer, in the order of their ids."""
    texts: list[str] = []
    for _, added in sorted(tokenizer.get_added_tokens_decoder().items()):
        token = added.content
        texts += (
            token,
            f"a{token}b",
            f" {token} b",
            f"a  {token}  b",
            f"{token}\n\n{token} x",
            token.upper(),
            token.strip(),
        )
    return list(dict.fromkeys(texts))


def _ids(tokenizer: Tokenizer, text: str, special: bool) -> list[int] | None:
    try:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=special).ids
    except Exception:  # the library raises Exception itself
        return None
    return ids


def first_difference(
    ours: Tokenizer, other: Tokenizer, texts: Iterable[str], *, plain: bool = False
) -> Difference | None:
    """Return the first text whose ids differ, or None. Special tokens are added, and then not; with ``plain`` only not."""
    for text, special in product(texts, (False,) if plain else (True, False)):
        ids, others = _ids(ours, text, special), _ids(other, text, special)
        if ids != others:
            return Difference(text, ids, others)
    return None
