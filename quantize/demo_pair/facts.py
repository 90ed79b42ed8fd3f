"""Questions about simple knowledge, of the tables of ``words`` and of small numbers. One depends on its seed alone."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from edgedec.quantize.demo_pair import words
from edgedec.quantize.demo_pair.world import Question, polish

__all__ = ["fact"]

_SAID = re.compile(r"[\w'-]+")


def fact(seed: int) -> Question:
    """Return a question about simple knowledge: colours, sounds, opposites, sums up to twenty, days or uses."""
    rng = random.Random(f"fact {seed}")
    maker: Callable[[random.Random], tuple[str, str, list[str]]] = rng.choice(_FACTS)
    question, answer, wrong = maker(rng)
    return Question(question=polish(question), answer=polish(answer), wrong=tuple(polish(text) for text in wrong))


_Fact = tuple[str, str, list[str]]


def _form(
    rng: random.Random, asks: Sequence[str], answers: Sequence[str], key: str, right: str, pool: list[str]
) -> _Fact:
    """Return one phrasing of question and answer; ``pool`` must not contain another true value.

    A value that an answer repeats from the question, as 10 in "10 + 6 = 16", is neither right nor wrong in another wording
    of the same answer. It is therefore not offered as wrong, and a right value is not repeated.
    """
    forms = [answer.replace("[k]", key) for answer in answers]
    repeated = set(_SAID.findall(" ".join(forms)))
    answer = rng.choice([form for form in forms if right not in _SAID.findall(form)])
    pool = [value for value in dict.fromkeys(pool) if value != right and not repeated.issuperset(value.split())]
    filled = [answer.replace("*", value) for value in (right, *rng.sample(pool, 3))]
    return rng.choice(asks).replace("[k]", key).replace("*", right), filled[0], filled[1:]


def _table(name: str) -> Callable[[random.Random], _Fact]:
    def make(rng: random.Random) -> _Fact:
        asks, answers, rows = words.FACTS[name]
        key, right = rng.choice(rows)
        truths = {value for other, value in rows if other == key}
        pool = [value for _, value in rows if value not in truths and value not in words.ALSO_TRUE.get((name, key), ())]
        return _form(rng, asks, answers, key, right, pool)

    return make


def _sum(rng: random.Random) -> _Fact:
    total = rng.randrange(2, 21)
    first = rng.randrange(1, total)
    if rng.random() < 0.3:
        return _digits(rng, first, total - first, "+", total)
    a, b, c = words.NUMBERS[first], words.NUMBERS[total - first], words.NUMBERS[total]
    thing = rng.choice(words.COUNTED)
    name, other = rng.sample((*words.GIRLS, *words.BOYS), 2)
    pool = [value for value in words.NUMBERS[1:] if value != c]
    asks: tuple[str, ...]
    if rng.random() < 0.5:
        asks = (
            f"What is {a} plus {b}?",
            f"How much is {a} and {b}?",
            f"What do {a} and {b} make?",
            f"Add {a} and {b}.",
        )
        return _form(rng, asks, (f"{a} plus {b} is *.", f"{a} and {b} make *.", "It is *."), "", c, pool)
    ones, twos = (thing[n != 1] for n in (first, total - first))
    asks = (
        f"{name} has {a} {ones} and gets {b} more. How many {thing[1]} does {name} have now?",
        f"There are {a} {thing[1]} in a box and {b} in a bag. How many {thing[1]} are there?"
        if first > 1
        else f"{name} has {a} {ones} and {other} has {b} {twos}. How many {thing[1]} do they have?",
    )
    return _form(rng, asks, (f"* {thing[1]}.", "The answer is *."), "", c, pool)


def _digits(rng: random.Random, a: int, b: int, sign: str, result: int) -> _Fact:
    """Return a sum that is written in digits."""
    word = {"+": "plus", "-": "minus"}[sign]
    asks = (f"What is {a} {sign} {b}?", f"How much is {a} {word} {b}?", f"{a} {sign} {b} = ?")
    pool = [str(value) for value in range(1, 21) if value != result]
    return _form(rng, asks, (f"{a} {sign} {b} = *", "It is *."), "", str(result), pool)


def _take(rng: random.Random) -> _Fact:
    start = rng.randrange(3, 21)
    less = rng.randrange(1, start - 1)  # leaves at least two, so that the plural is correct
    a, b, c = words.NUMBERS[start], words.NUMBERS[less], words.NUMBERS[start - less]
    if rng.random() < 0.3:
        return _digits(rng, start, less, "-", start - less)
    thing, name = rng.choice(words.COUNTED)[1], rng.choice((*words.GIRLS, *words.BOYS))
    pool = [value for value in words.NUMBERS[1:] if value != c]
    asks: tuple[str, ...]
    if rng.random() < 0.5:
        asks = (f"What is {a} minus {b}?", f"How much is {a} take away {b}?", f"Take {b} from {a}. What is left?")
        return _form(rng, asks, (f"{a} minus {b} is *.", "It is *.", "* is left."), "", c, pool)
    asks = (
        f"{name} has {a} {thing} and gives {b} away. How many {thing} are left?",
        f"There are {a} {thing} on a table. {name} takes {b}. How many {thing} are left?",
    )
    return _form(rng, asks, (f"* {thing} are left.", f"There are * {thing} left."), "", c, pool)


def _next(rng: random.Random) -> _Fact:
    n = rng.randrange(1, 20)
    here, after = words.NUMBERS[n], words.NUMBERS[n + 1]
    pool = [value for value in words.NUMBERS[1:] if value not in (here, after)]
    if rng.random() < 0.5:
        return _form(rng, (f"What number comes after {here}?", f"Count on: what comes after {here}?"),
                     (f"After {here} comes *.", "*."), "", after, pool)  # fmt: skip
    return _form(rng, (f"What number comes before {after}?", f"Count back: what comes before {after}?"),
                 (f"Before {after} comes *.", "*."), "", here, pool)  # fmt: skip


def _compare(rng: random.Random) -> _Fact:
    numbers = rng.sample(range(1, 21), 4)
    said = [words.NUMBERS[n] for n in numbers]
    most = rng.random() < 0.5
    right = words.NUMBERS[max(numbers) if most else min(numbers)]
    ask = f"Which number is the {'biggest' if most else 'smallest'}: {said[0]}, {said[1]}, {said[2]} or {said[3]}?"
    return _form(rng, (ask,), ("It is *.", f"The {'biggest' if most else 'smallest'} is *."), "", right, said)


def _order(rng: random.Random) -> _Fact:
    names = rng.choice((words.DAYS, words.DAYS, words.MONTHS, words.SEASONS))
    i = rng.randrange(len(names))
    here, after = names[i], names[(i + 1) % len(names)]
    noun = {len(words.DAYS): "day", len(words.MONTHS): "month", len(words.SEASONS): "season"}[len(names)]
    pool = [*names, *words.MONTHS]  # there are too few seasons for three wrong ones
    if rng.random() < 0.5:
        asks = (f"What {noun} comes after {here}?", f"Which {noun} follows {here}?")
        return _form(rng, asks, (f"After {here} comes *.", f"The next {noun} is *."), "", after, pool)
    asks = (f"What {noun} comes before {after}?", f"Which {noun} is just before {after}?")
    return _form(rng, asks, (f"Before {after} comes *.", f"The {noun} before {after} is *."), "", here, pool)


_FACTS: tuple[Callable[[random.Random], _Fact], ...] = (
    *(_table(name) for name in words.FACTS),
    _sum,
    _sum,
    _take,
    _next,
    _compare,
    _order,
)
