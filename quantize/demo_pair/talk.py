"""Generate the documents of the embedded pair: texts alone, texts with questions, and conversations about texts.

A document is a list of (user, assistant) turns that depends on its seed alone. A plain text is one turn with an empty
request.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from edgedec.quantize.demo_pair import sketch_words as sketches
from edgedec.quantize.demo_pair.facts import fact
from edgedec.quantize.demo_pair.sketch import Sketch, listed, scene, sketch
from edgedec.quantize.demo_pair.world import Question, Tale, tale, tidy

__all__ = ["Turn", "conversation", "mood_requests", "request"]

Turn = tuple[str, str]

_UNKNOWN_SHARE = 0.2  # share of the questions about a story that the story does not answer
_SEEDS = 1 << 40
_MOST_PARTS = 32  # parts of a conversation about several subjects
_MOST_LETTERS = 14_000  # such a conversation has fewer than 4,096 tokens


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


def _follow_up(item: Sketch, rng: random.Random, mood: str, continued: bool) -> tuple[str, str, str]:
    """Return a request about the story just told, its answer, and the mood that the story then has.

    After a continuation, neither "Make it shorter." nor "Who is in the story?" can be answered from the story alone.
    """
    kind = rng.random()
    if continued and (0.34 <= kind < 0.66 or 0.76 <= kind < (0.86 if item.packed else 1.0)):
        kind = 0.7  # ask for a title instead
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
        return rng.choice(sketches.PEOPLE), f"{listed(item.named)}.", mood
    lines = "\n".join(f"{at}. {name}" for at, name in enumerate(item.packed, 1))
    return rng.choice(sketches.LISTING), lines, mood


def _small_talk(rng: random.Random, among: sketches.Talk = sketches.SMALL_TALK) -> Turn:
    asks, answers = rng.choice(among)
    return rng.choice(asks), rng.choice(answers)


def _tale_turns(rng: random.Random, item: Tale) -> list[Turn]:
    questions = _some(rng, item.questions, item.unknown, 5) if rng.random() < 0.85 else []
    return [(request(item, rng), item.text), *((one.question, one.answer) for one in questions)]


def _sketch_turns(rng: random.Random, item: Sketch) -> list[Turn]:
    turns, mood, continued = [(request(item, rng), item.text())], item.mood, False
    used: set[str] = set()
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.5:
            pool = (*item.lasting, *item.later) if continued else (*item.questions, *item.endings[mood])
            other = item.lasting_unknown if continued else item.unknown
            left = [one for one in pool if one.question not in used]
            some = _some(rng, left, [ask for ask in other if ask not in used], 4)
            turns += [(one.question, one.answer) for one in some]
            used |= {one.question for one in some}
        else:
            ask, answer, told = _follow_up(item, rng, mood, continued)
            if answer in {earlier for _, earlier in turns}:
                continue
            turns.append((ask, answer))
            continued = (continued or answer == item.then) and told == mood
            if told != mood:  # the questions about the end now have other answers
                used -= {one.question for one in item.endings[mood]}
                mood = told
    return turns


def _about_tale(rng: random.Random, seed: int) -> list[Turn]:
    return _tale_turns(rng, tale(seed))


def _about_sketch(rng: random.Random, seed: int) -> list[Turn]:
    return _sketch_turns(rng, sketch(seed))


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


_Told = tuple[str, str, Sequence[Question]]
"""A story of a conversation: its hero, its text, and questions that later turns leave true."""


def _look_back(rng: random.Random, told: Sequence[_Told]) -> Turn:
    """Return a question about an earlier story of the conversation."""
    heroes = [hero for hero, _, _ in told]
    hero, _, questions = told[rng.randrange(len(told) - 1)]
    named = [one for one in questions if re.search(rf"\b{hero}\b", one.question)]
    if sum(hero in text for _, text, _ in told) == 1 and named and rng.random() < 0.5:
        one = rng.choice(named)
        return one.question, one.answer
    (asks, answers), hero = rng.choice(((sketches.FIRST_STORY, heroes[0]), (sketches.STORY_BEFORE, heroes[-2])))
    return rng.choice(asks), rng.choice(answers).replace("*", hero)


def _long_talk(rng: random.Random, seed: int) -> list[Turn]:
    """Return a conversation about several stories and facts, some of it as long as a model can read."""
    turns = [_small_talk(rng, sketches.GREETINGS + sketches.QUESTIONS_TO_ME)] if rng.random() < 0.5 else []
    told: list[_Told] = []
    stories = rng.random() < 0.4  # about stories alone
    letters = 0
    for at in range(rng.randint(2, 6) if rng.random() < 0.7 else rng.randint(7, _MOST_PARTS)):
        kind = rng.random() * (0.75 if stories else 1.0)
        if kind >= 0.75:
            part = [turn for turn in _facts(rng, seed) if turn[0]][:4]
        else:
            own = -(
                seed * _MOST_PARTS + at + 1
            )  # below 0, so that it is the seed of no other document and not held out
            item = tale(own) if kind < 0.25 else sketch(own)
            part = _tale_turns(rng, item) if isinstance(item, Tale) else _sketch_turns(rng, item)
            if told and rng.random() < 0.3:
                part[0] = (rng.choice(sketches.AGAIN), part[0][1])
            if isinstance(item, Tale):
                told.append((item.about[0], item.text, item.questions))
            else:
                told.append((item.names[0], item.body, item.lasting))
            if len(told) > 1 and rng.random() < 0.4:
                part.append(_look_back(rng, told))
            if rng.random() < 0.25:
                part.append(_small_talk(rng, sketches.REMARKS + sketches.THANKS))
        letters += sum(len(ask) + len(answer) for ask, answer in part)
        if letters > _MOST_LETTERS:
            break
        turns += part
    if not turns or rng.random() < 0.2:
        turns.append(_small_talk(rng, sketches.THANKS + sketches.GOODBYES))
    return turns


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
    (0.18, _alone),  # more than _with_questions, so that the likeliest end of a text alone is its end
    (0.1, _with_questions),
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
