"""Make the texts of a calibration, whose ends can be told only by those who remember their beginnings.

For the embedded pair, a text is a conversation that ends with questions about its last story. For any other model it has
random token ids, in which keys (short runs of ids) are hidden; at the end the keys come again. Models copy such runs
although they never saw them (2209.11895), and the texts need no language.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgedec.bundle.bundle import Bundle
from edgedec.quantize.demo_pair.data import HELD_OUT_SEED, SPECIAL_TOKENS
from edgedec.quantize.demo_pair.recall import look_back

__all__ = ["RecallText", "recall_texts"]

_SEEDS = HELD_OUT_SEED + (1 << 28)  # the first seed of conversations, none of which is measured elsewhere
_STEPS = 1 << 14  # seeds of conversations for each seed of a calibration
_STORY_TOKENS = 512  # about the most tokens of a story and the questions about it
_KEY_TOKENS, _CUE_TOKENS = 24, 4  # tokens of a key, and those of its second mention that no reader can tell
_KEYS_SHARE = 0.25  # share of the text that repeats keys


@dataclass(frozen=True, kw_only=True)
class RecallText:
    """A text.

    Members:
        ids: int64 [n].
        rows: numbers of the rows whose next token is recalled, int64 [r], ascending.
    """

    ids: NDArray[np.int64]
    rows: NDArray[np.int64]


def recall_texts(bundle: Bundle, length: int, seed: int) -> Callable[[int], RecallText]:
    """Return the function that makes the text of a step, of at most ``length`` tokens.

    Args:
        bundle: the model; its tokenizer tells whether it is the embedded pair.
        length: least 64.
        seed: other seeds make other texts.
    """
    tokenizer = Tokenizer.from_file(str(bundle.tokenizer_file))
    known = tokenizer.get_vocab()
    special = [known[token] for token in SPECIAL_TOKENS if token in known]

    def text(step: int) -> RecallText:
        if len(special) == len(SPECIAL_TOKENS):
            talk = _conversation(tokenizer, special, length, _SEEDS + seed * _STEPS + step)
            if len(talk.rows):  # a text that is shorter than a story has no question
                return talk
        return _keys(bundle, length, np.random.default_rng((seed, step)))

    return text


def _conversation(tokenizer: Tokenizer, special: Sequence[int], length: int, seed: int) -> RecallText:
    begin, end, user, assistant = special

    def encoded(ask: str, answer: str) -> tuple[list[int], list[int]]:
        first, second = tokenizer.encode_batch([ask, answer], add_special_tokens=False)
        return [user, *first.ids, assistant], [*second.ids, end]

    before = random.Random(seed).randrange(max(1, length - _STORY_TOKENS))
    talk = look_back(seed, lambda turns: sum(len(part) for turn in turns for part in encoded(*turn)) >= before)
    told = [[part for parts in encoded(*turn) for part in parts] for turn in talk.turns]
    asked = [encoded(question.question, question.answer) for question in talk.questions]
    room = length - 1 - len(told[-1]) - sum(len(ask) + len(answer) for ask, answer in asked)
    if room < 0:
        return RecallText(ids=np.zeros(0, np.int64), rows=np.zeros(0, np.int64))
    history = [token for story in told[:-1] for token in story]
    ids, rows = [begin, *history[max(0, len(history) - room) :], *told[-1]], list[int]()
    for ask, answer in asked:
        ids += ask
        rows += range(len(ids) - 1, len(ids) - 1 + len(answer))
        ids += answer
    return RecallText(ids=np.array(ids, np.int64), rows=np.array(rows, np.int64))


def _keys(bundle: Bundle, length: int, rng: np.random.Generator) -> RecallText:
    known = {bundle.tokens.bos, *bundle.tokens.eos}
    usual = np.array([token for token in range(bundle.tokens.size) if token not in known], np.int64)
    key = min(_KEY_TOKENS, max(_CUE_TOKENS + 1, length // 8))
    count = max(1, int(length * _KEYS_SHARE) // key)
    ids = rng.choice(usual, length)
    if bundle.tokens.bos is not None:
        ids[0] = bundle.tokens.bos
    end = length - count * key
    places = 1 + rng.choice((end - 1) // key, count, replace=False) * key
    rows = list[int]()
    for number, place in enumerate(rng.permutation(places).tolist()):
        again = end + number * key
        ids[again : again + key] = ids[place : place + key]
        rows += range(again + _CUE_TOKENS - 1, again + key - 1)
    return RecallText(ids=ids, rows=np.array(rows, np.int64))
