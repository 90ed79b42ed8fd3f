"""Control tokens of a tokenizer, and texts in which their spelling is text.

Control tokens are the special tokens of the tokenizer, and added tokens that are spelled like them (``<|name|>``), because
some tokenizers do not call the tokens special that begin a turn. Other added tokens, such as ``<think>``, are tokens
wherever they stand.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as HfTokenizer

from edgedec.errors import UsageError
from edgedec.runtime.protocols import I32
from edgedec.runtime.text.provenance import RenderedText

__all__ = ["ControlTokens"]

_SPELLING = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)  # DeepSeek's tokens have fullwidth bars


class ControlTokens:
    """The control tokens of a tokenizer, and a second tokenizer of the same model that reads their spelling as text.

    In the second tokenizer they have another spelling, which begins with a mark that nobody can guess. So the tokens of a
    template, spelled like that, are found as the tokenizer finds them, with all its rules for blanks, and nothing else is.

    Parameters:
        tokenizer: the tokenizer. Both share its vocabulary and merges.
    """

    def __init__(self, tokenizer: HfTokenizer) -> None:
        self._hf = tokenizer
        added = sorted(tokenizer.get_added_tokens_decoder().items())
        self._ids = {
            token.content: token_id
            for token_id, token in added
            if token.content.strip() and (token.special or _SPELLING.fullmatch(token.content))
        }
        self._of_control = frozenset(self._ids.values())
        longest = sorted((token.content for _, token in added if token.content), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest)) or "(?!)")
        self._added = [token for _, token in added]
        self._mark = f"\U000f0000{os.urandom(8).hex()}"
        self._reader: HfTokenizer | None = None  # made for the first text that needs it
        self._marked: dict[int, int] = {}  # id of a marked token in the second tokenizer -> id
        self._renumbered: dict[int, int] = {}  # the same for other added tokens

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Return the ids of a text without control tokens, except those that ``add_special`` adds."""
        encoding = self._second.encode(text, add_special_tokens=False)
        ids = self._translated(encoding.ids)
        if not add_special:
            return ids
        whole = self._hf.post_process(encoding)
        own = [place for place, special in enumerate(whole.special_tokens_mask) if not special]
        first, last = (own[0], own[-1] + 1) if own else (len(whole.ids), len(whole.ids))
        return [*whole.ids[:first], *ids, *whole.ids[last:]]

    def encode_rendered(self, text: RenderedText, encode: Callable[[str], I32]) -> I32:
        """Return the ids of a rendered conversation whose control tokens are those of the template, int32 [n].

        Parameters:
            text: the conversation.
            encode: the tokenizer itself, whose ids are returned if no message has a control token.

        Raises:
            UsageError: a message has a control token, and the template's own cannot be told from it.
        """
        if text.unmarked is not None:
            if self._places(text.unmarked):
                raise _unclear("the chat template does not say which text is a message's")
            return encode(text)
        own = self._places(text.masked)
        wanted = self._count(own)
        if self._places(text) == own if text.traced else self._count(self._places(text)) == wanted:
            ids = encode(text)
            # The tokenizer may still find one: tokens that are not ``normalized=False`` are sought in the normalized text.
            if Counter(ids[np.isin(ids, [*self._of_control])].tolist()) <= wanted:
                return ids
        if not text.traced:
            raise _unclear("the chat template changes texts so that its own tokens cannot be told from them")
        pieces, end = list[str](), 0
        for start, token in own:
            pieces += [text[end:start], self._mark, token]
            end = start + len(token)
        encoded = self._second.encode("".join([*pieces, text[end:]]), add_special_tokens=False).ids
        if Counter(self._marked[one] for one in encoded if one in self._marked) != wanted:
            raise _unclear("the tokenizer does not find all tokens of the chat template")
        return np.array(self._translated(encoded), np.int32)

    def _places(self, text: str) -> list[tuple[int, str]]:
        """Return the place and the spelling of each control token of a text."""
        return [(match.start(), match[0]) for match in self._pattern.finditer(text) if match[0] in self._ids]

    def _count(self, places: Iterable[tuple[int, str]]) -> Counter[int]:
        return Counter(self._ids[token] for _, token in places)

    @property
    def _second(self) -> HfTokenizer:
        if self._reader is None:
            reader = HfTokenizer(self._hf.model)
            for part in ("normalizer", "pre_tokenizer"):
                if (value := getattr(self._hf, part)) is not None:
                    setattr(reader, part, value)
            for token in self._added:
                is_control = token.content in self._ids
                name = f"{self._mark}{token.content}" if is_control else token.content
                rules = {rule: getattr(token, rule) for rule in ("lstrip", "rstrip", "single_word", "normalized")}
                reader.add_tokens([AddedToken(name, special=False, **rules)])
                number, own = reader.token_to_id(name), self._hf.token_to_id(token.content)
                assert number is not None
                assert own is not None
                if is_control:
                    self._marked[number] = own
                elif number != own:
                    self._renumbered[number] = own
            self._reader = reader
        return self._reader

    def _translated(self, ids: Iterable[int]) -> list[int]:
        """Return ids of the second tokenizer as those of the first one."""
        result = list[int]()
        for one in ids:
            if one in self._marked:
                result.append(self._marked[one])
            elif (own := self._renumbered.get(one, one)) in self._of_control:
                result += self._respelled(own)
            else:
                result.append(own)
        return result

    def _respelled(self, control: int) -> list[int]:
        """Return the ids of a control token's spelling that the model itself, of a whole vocabulary, took for the token."""
        spelling = str(self._hf.id_to_token(control))
        ids = [token.id for part in (spelling[:1], spelling[1:]) if part for token in self._hf.model.tokenize(part)]
        if not ids or not set(ids).isdisjoint(self._of_control):
            raise _unclear(f"the tokenizer has no other spelling of {spelling!r}")
        return ids


def _unclear(reason: str) -> UsageError:
    return UsageError(
        f"a message has the text of a control token, and {reason}; leave it out, or use --no-sanitize-control-tokens"
    )
