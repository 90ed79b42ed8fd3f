"""Make conversations that end with questions about the story told last, after other stories.

The embedded pair answers such questions whatever was told before, but takes the last story for the one that is meant, even
if a question names the hero of an earlier one. So the answers lie some hundred tokens before the questions at most.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgedec.quantize.demo_pair.sketch import sketch
from edgedec.quantize.demo_pair.talk import Turn, request
from edgedec.quantize.demo_pair.world import Question, tale

__all__ = ["LookBack", "look_back"]

_MOST_TURNS = 4096  # turns of a conversation


@dataclass(frozen=True, kw_only=True)
class LookBack:
    """A conversation.

    Members:
        turns: requests and stories; the last one is the story that is asked about.
        questions: all questions about it, in the order in which they are asked.
    """

    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]


def look_back(seed: int, enough: Callable[[Sequence[Turn]], bool]) -> LookBack:
    """Return the conversation of a seed, with other stories before the last one until there are ``enough``.

    A seed from ``data.HELD_OUT_SEED`` on makes stories that the embedded pair was not trained on.
    """
    rng, turns = random.Random(f"look back {seed}"), list[Turn]()
    first = seed * _MOST_TURNS
    while not enough(turns) and len(turns) < _MOST_TURNS - 1:
        other = first + 1 + len(turns)
        if rng.random() < 0.5:
            told = tale(other)
            turns.append((request(told, rng), told.text))
        else:
            short = sketch(other)
            turns.append((request(short, rng), short.text()))
    last = tale(first)
    questions = list(last.questions)
    rng.shuffle(questions)
    return LookBack(turns=(*turns, (request(last, rng), last.text)), questions=tuple(questions))
