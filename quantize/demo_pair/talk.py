"""Generate the documents of the embedded pair: texts alone, texts with questions, and conversations about texts.

A document is a list of (user, assistant) turns that depends on its seed alone. A plain text is one turn with an empty
request.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from edgedec.quantize.demo_pair import sketch_words as sketches
from edgedec.quantize.demo_pair.sketch import Sketch, listed, scene, sketch
from edgedec.quantize.demo_pair.world import Question, Tale, fact, tale, tidy

__all__ = ["Turn", "conversation", "mood_requests", "request"]

Turn = tuple[str, str]

_UNKNOWN_SHARE = 0.2  # share of the questions about a story that the story does not answer
_SEEDS = 1 << 40


def mood_requests(mood: str) -> tuple[str, ...]:
    """Return the requests to tell the story again in this mood."""
    return {"sad": sketches.SAD, "happy": sketches.HAPPY, "funny": sketches.FUNNY}[mood]


def _pairs(questions: Sequence[Question]) -> str:
    return "\n".join(f"Q: {item.question} A: {item.answer}" for item in questions)


def _some(
    rng: random.Random,
    questions: Sequence[Question],
    unknown: Sequence[str],
    most: int,
    answers: Sequence[str] = sketches.UNKNOWN,
) -> list[Question]:
    """Return one to ``most`` different questions, some of which the text does not answer."""
    left, other, result = list(questions), list(unknown), []
    for _ in range(rng.randint(1, most)):
        if other and (not left or rng.random() < _UNKNOWN_SHARE):
            ask = other.pop(rng.randrange(len(other)))
            result.append(Question(question=ask, answer=rng.choice(answers), wrong=()))
        elif left:
            result.append(left.pop(rng.randrange(len(left))))
    return result


def request(item: Tale | Sketch, rng: random.Random) -> str:
    """Return a request to which the text is a correct answer."""
    tell = rng.choice(sketches.TELL)
    if isinstance(item, Tale):
        hero, topic = item.about
        about = rng.choice(("", f" about {hero}", *([f" about {hero} and {topic}"] * 3), *([f" about {topic}"] * 2)))
        return f"{tell} a {rng.choice(('', '', 'long '))}story{about}{'?' if tell.startswith('C') else '.'}"
    subject = item.subjects
    kind = subject["h.kind"]
    hero = rng.choice((subject["h"], f"a {kind}", f"a {kind} named {subject['h']}"))
    thing = rng.choice((f"a {subject['t']}", subject["t.a"]))
    about = rng.choice(
        (
            "",
            f" about {hero}",
            f" about {thing}",
            *([f" about {hero} and {thing}"] * 5),
            f" about {subject['h']} and {subject['f']}",
            f" about {hero} {subject['p.at']}",
            f" about {hero} and {thing} {subject['p.at']}",
            f" with the words {kind}, {subject['t']} and {subject['p'].removeprefix('the ')}",
        )
    )
    mood = f"{item.mood} " if rng.random() < (0.35 if about else 1.0) else ""
    short = rng.choice(("", "short "))
    return tidy(f"{tell} a {short}{mood}story{about}{'?' if tell.startswith('C') else '.'}")


def _follow_up(item: Sketch, rng: random.Random, mood: str) -> tuple[str, str, str]:
    """Return a request about the story just told, its answer, and the mood that the story then has."""
    kind = rng.random()
    if kind < 0.34:
        new = rng.choice([name for name in sketches.MOODS if name != mood])
        return rng.choice(mood_requests(new)), item.text(new), new
    if kind < 0.48:
        return rng.choice(sketches.SHORTER), item.shorter[mood], mood
    if kind < 0.66:
        return rng.choice(sketches.CONTINUE), item.then, mood
    if kind < 0.76:
        return rng.choice(sketches.TITLE), item.title, mood
    if kind < 0.86 or not item.packed:
        return rng.choice(sketches.PEOPLE), f"{listed(item.names)}.", mood
    lines = "\n".join(f"{at}. {name}" for at, name in enumerate(item.packed, 1))
    return rng.choice(sketches.LISTING), lines, mood


def _small_talk(rng: random.Random) -> Turn:
    asks, answers = rng.choice(sketches.SMALL_TALK)
    return rng.choice(asks), rng.choice(answers)


def _about_tale(rng: random.Random, seed: int) -> list[Turn]:
    item = tale(seed)
    questions = _some(rng, item.questions, item.unknown, 5) if rng.random() < 0.85 else []
    return [(request(item, rng), item.text), *((one.question, one.answer) for one in questions)]


def _about_sketch(rng: random.Random, seed: int) -> list[Turn]:
    item = sketch(seed)
    turns, mood = [(request(item, rng), item.text())], item.mood
    used: set[str] = set()
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.5:
            left = [one for one in (*item.questions, *item.endings[mood]) if one.question not in used]
            some = _some(rng, left, [ask for ask in item.unknown if ask not in used], 4)
            turns += [(one.question, one.answer) for one in some]
            used |= {one.question for one in some}
        else:
            ask, answer, told = _follow_up(item, rng, mood)
            if answer in {earlier for _, earlier in turns}:
                continue
            turns.append((ask, answer))
            if told != mood:  # the questions about the end now have other answers
                used -= {one.question for one in item.endings[mood]}
                mood = told
    return turns


def _about_scene(rng: random.Random, seed: int) -> list[Turn]:
    item = scene(seed)
    questions = _some(rng, item.questions, item.unknown, 6, sketches.UNKNOWN_SCENE)
    if rng.random() < 0.5:
        return [("", f"{item.text}\n\n{_pairs(questions)}")]
    first, *others = questions
    return [(f"{item.text} {first.question}", first.answer), *((one.question, one.answer) for one in others)]


def _facts(rng: random.Random, seed: int) -> list[Turn]:
    facts = [fact(rng.randrange(_SEEDS)) for _ in range(rng.randint(3, 10))]
    return [(item.question, item.answer) for item in facts] if rng.random() < 0.6 else [("", _pairs(facts))]


def _long_talk(rng: random.Random, seed: int) -> list[Turn]:
    """Return a conversation about several subjects."""
    turns = [_small_talk(rng)] if rng.random() < 0.5 else []
    for at in range(rng.randint(2, 6)):
        maker = rng.choice((_about_tale, _about_sketch, _about_sketch, _facts))
        part = [turn for turn in maker(rng, seed * 8 + at) if turn[0]]
        if at and maker is not _facts and part and rng.random() < 0.3:
            part[0] = (rng.choice(sketches.AGAIN), part[0][1])
        turns += part[:4] if maker is _facts else part
        if rng.random() < 0.3:
            turns.append(_small_talk(rng))
    return turns or [_small_talk(rng)]


def _alone(rng: random.Random, seed: int) -> list[Turn]:
    return [("", tale(seed).text if rng.random() < 0.75 else sketch(seed).text())]


def _with_questions(rng: random.Random, seed: int) -> list[Turn]:
    if rng.random() < 0.6:
        item = tale(seed)
        return [("", f"{item.text}\n\n{_pairs(_some(rng, item.questions, item.unknown, 5))}")]
    short = sketch(seed)
    questions = _some(rng, (*short.questions, *short.endings[short.mood]), short.unknown, 6)
    return [("", f"{short.text()}\n\n{_pairs(questions)}")]


_Maker = Callable[[random.Random, int], list[Turn]]
# Shares of the documents by kind. Documents about facts and scenes are short, so their share of the tokens is smaller.
_MAKERS: tuple[tuple[float, _Maker], ...] = (
    (0.14, _alone),
    (0.14, _with_questions),
    (0.16, _about_tale),
    (0.2, _about_sketch),
    (0.16, _about_scene),
    (0.15, _facts),
    (0.02, lambda rng, seed: [_small_talk(rng) for _ in range(rng.randint(1, 3))]),
    (0.03, _long_talk),
)


def conversation(seed: int) -> list[Turn]:
    """Return the turns of the document of this seed."""
    rng = random.Random(f"document {seed}")
    shares = [share for share, _ in _MAKERS]
    ((_, maker),) = rng.choices(_MAKERS, shares)
    return maker(rng, seed)
