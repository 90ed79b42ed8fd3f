"""Measure the embedded pair's answers to requests about its world: stories, questions, instructions and facts.

Every check judges the words of a greedy answer. The requests come from seeds above ``HELD_OUT_SEED``, which are not in the
training text.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from edgedec.quantize.demo_pair import sketch_words as sketches
from edgedec.quantize.demo_pair import words
from edgedec.quantize.demo_pair.check import is_right, name_faults, names_in
from edgedec.quantize.demo_pair.data import HELD_OUT_SEED
from edgedec.quantize.demo_pair.facts import fact
from edgedec.quantize.demo_pair.sketch import Sketch, sketch
from edgedec.quantize.demo_pair.talk import Turn, mood_requests, request
from edgedec.quantize.demo_pair.world import Question, repeated_share, tale, tidy

__all__ = ["Ask", "facts", "instructions", "own_questions", "questions", "stories"]

Ask = Callable[[Sequence[Turn], str], str]
"""Function from (earlier turns, the user's text) to the answer; without turns, a text that is no request is continued."""

LOOPS_FROM = 0.2  # share of repeated 4-word sequences from which a text counts as looping
_FIRST = HELD_OUT_SEED + 50_000
_MARKS = {"happy": r"\bhappy\b|\bglad\b", "sad": r"\bsad\b|\bcried\b", "funny": r"\blaugh|\bfunn"}


def _share(right: int, count: int) -> float:
    return right / count if count else 0.0


def _openings(count: int) -> Iterator[str]:
    """Yield the first sentences of different held-out stories."""
    seen: set[str] = set()
    for seed in range(_FIRST, _FIRST + 10 * count):
        first = re.split(r"(?<=[.!?]) |\n", tale(seed).text)[0]
        if first not in seen and len(seen) < count:
            seen.add(first)
            yield first


def stories(ask: Ask, tell: Callable[[str], str], count: int) -> dict[str, Any]:
    """Measure stories: half continue an opening sentence, half are answers to requests.

    Args:
        ask: function that answers a request.
        tell: function that returns a text with its continuation.
        count: number of stories, which must be even.
    """
    rng = random.Random(1)
    texts = [tell(first) for first in _openings(count // 2)]
    requests = [request(tale(_FIRST + at) if at % 2 else sketch(_FIRST + at), rng) for at in range(count // 2)]
    answers = [ask([], wish) for wish in requests]
    everything = [*texts, *answers]
    faults = {text: name_faults(text) for text in everything}
    # Words 31 to 38 of each text tell whether two texts are the same story; ``plain`` has them with names replaced.
    middles = [" ".join(text.split()[30:38]) for text in everything]
    plain = [re.sub(r"\b[A-Z][a-z]+\b", "N", middle) for middle in middles]
    return {
        "stories": len(everything),
        "names_consistent": _share(sum(not fault for fault in faults.values()), len(faults)),
        "different": len(set(middles)),
        "different_without_names": len(set(plain)),
        "looping": sum(repeated_share(text) > LOOPS_FROM for text in everything),
        "faulty": [(fault, text[:300]) for text, fault in faults.items() if fault][:5],
        "samples": [*texts[:3], *(f"{wish}\n> {text}" for wish, text in zip(requests[:3], answers[:3], strict=True))],
    }


def _story_and_questions(seed: int, rng: random.Random, count: int) -> tuple[Turn, list[Question]]:
    item = sketch(seed) if seed % 2 else tale(seed)
    if isinstance(item, Sketch):
        text, pool = item.text(), [*item.questions, *item.endings[item.mood]]
    else:
        text, pool = item.text, list(item.questions)
    sample = rng.sample(pool, count)
    if item.unknown and rng.random() < 0.3:
        sample[0] = Question(question=rng.choice(item.unknown), answer=sketches.UNKNOWN[0], wrong=())
    return (request(item, rng), text), sample


def questions(ask: Ask, count: int) -> dict[str, Any]:
    """Measure answers to questions about a held-out story that the conversation holds, two for each story."""
    rng, right, total, wrong = random.Random(2), Counter[str](), Counter[str](), []
    for at in range(count // 2):
        turn, sample = _story_and_questions(_FIRST + 10_000 + at, rng, 2)
        for question in sample:
            answer = ask([turn], question.question)
            kind = "unknown" if not question.wrong and not question.value else "short" if at % 2 else "long"
            good = is_right(answer, question)
            right[kind] += good
            total[kind] += 1
            if not good:
                wrong.append((question.question, question.answer, answer))
    return {
        "asked": total.total(),
        "right": _share(right.total(), total.total()),
        **{f"right_{kind}": _share(right[kind], total[kind]) for kind in sorted(total)},
        "wrong": wrong[:8],
    }


def own_questions(ask: Ask, count: int) -> dict[str, Any]:
    """Measure answers to questions about stories that the model has just told; the right answers are read from its text."""
    rng, right, total, wrong = random.Random(3), 0, 0, []
    nouns = sorted((noun for names in sketches.KINDS_OF_THINGS.values() for noun in names), key=len, reverse=True)
    thing = re.compile(rf"\ban? ({'|'.join(words.COLORS)}) ({'|'.join(nouns)})\b")
    for at in range(count):
        one = sketch(_FIRST + 20_000 + at)
        wish = f"Tell me a short story about {one.subjects['h']} and {one.subjects['t.a']}."
        text = ask([], wish)
        truths = [("Who is the story about?", name) for name in names_in(text)[:1]]
        truths += [(f"What color was the {m[2]}?", m[1]) for m in [thing.search(text)] if m]
        truths += [
            ("Where did they go?", m[1]) for m in [re.search(r" went to (the [a-z ]+?)(?: with |[.,])", text)] if m
        ]
        for question, value in truths:
            answer = ask([(wish, text)], question)
            good = is_right(answer, Question(question=question, answer=value, wrong=(), value=value))
            right, total = right + good, total + 1
            if not good:
                wrong.append((question, value, answer))
    rng.shuffle(wrong)
    return {"asked": total, "right": _share(right, total), "wrong": wrong[:5]}


def _has(text: str, *needed: str) -> bool:
    return all(re.search(rf"\b{re.escape(part)}\b", text, re.IGNORECASE) for part in needed)


def _instruction(kind: str, one: Sketch, ask: Ask, rng: random.Random) -> tuple[str, str, bool]:
    """Return a request, its answer, and whether the answer contains the requested things."""
    subject, turn = one.subjects, [(request(one, rng), one.text())]
    hero = one.names[0]
    thing = subject["t"]
    if kind == "story":
        wishes = (
            tidy(f"Tell me a story about a {subject['h.kind']} and a {thing}."),  # "an owl", as in the training text
            f"Write a {one.mood} story about {hero} and {subject['t.a']}.",
            f"Tell me a short story about {hero} {subject['p.at']}.",
        )
        wish = rng.choice(wishes)
        text = ask([], wish)
        needed = [part for part in (hero, thing, subject["h.kind"]) if _has(wish, part)]
        good = _has(text, *needed) and (subject["p.at"] not in wish or _has(text, subject["p"]))
        return wish, text, good and (one.mood not in wish or bool(re.search(_MARKS[one.mood], text)))
    if kind in _MARKS:
        wish = rng.choice(mood_requests(kind))
        text = ask(turn, wish)
        return wish, text, _has(text, hero, thing) and bool(re.search(_MARKS[kind], text))
    requests = {
        "shorter": sketches.SHORTER,
        "continue": sketches.CONTINUE,
        "list": sketches.LISTING,
        "title": sketches.TITLE,
        "people": sketches.PEOPLE,
    }
    wish = rng.choice(requests[kind])
    text = ask(turn, wish)
    good = {
        "shorter": _has(text, hero, thing) and len(text.split()) < 0.7 * len(one.text().split()),
        "continue": _has(text, hero) and len(text.split()) > 10 and text not in one.text(),
        "list": all(_has(text, item) for item in one.packed) and text.count("\n") == len(one.packed) - 1,
        "title": _has(text, hero, thing) and len(text.split()) < 10,
        "people": set(names_in(text)) == set(one.named),
    }[kind]
    return wish, text, good


def instructions(ask: Ask, count: int) -> dict[str, Any]:
    """Measure whether requested things appear in a requested story, or in the new version of a story just told."""
    kinds = ("story", "story", "story", "happy", "sad", "funny", "shorter", "continue", "list", "title", "people")
    rng, right, total, wrong = random.Random(4), Counter[str](), Counter[str](), []
    seed = _FIRST + 30_000
    for at in range(count):
        kind = kinds[at % len(kinds)]
        one, seed = sketch(seed), seed + 1
        while (kind == "list" and not one.packed) or kind == one.mood:
            one, seed = sketch(seed), seed + 1
        wish, text, good = _instruction(kind, one, ask, rng)
        right[kind] += good
        total[kind] += 1
        if not good:
            wrong.append((wish, text[:300]))
    return {
        "asked": total.total(),
        "followed": _share(right.total(), total.total()),
        **{f"followed_{kind}": _share(right[kind], total[kind]) for kind in sorted(total)},
        "wrong": wrong[:6],
    }


def facts(ask: Ask, count: int) -> dict[str, Any]:
    """Measure answers to questions about the world that need no story."""
    wrong, right = [], 0
    for at in range(count):
        question = fact(_FIRST + 40_000 + at)
        answer = ask([], question.question)
        good = is_right(answer, question)
        right += good
        if not good:
            wrong.append((question.question, question.answer, answer))
    return {"asked": count, "right": _share(right, count), "wrong": wrong[:8]}
