"""Generate short stories that can be retold in another way, and scenes of a few sentences.

A model learns from them to read closely and to follow instructions. A sketch depends on its seed alone: a hero and a friend
take a thing to a place, something happens to it, and the mood determines the end. The same cast can therefore be retold
in another mood, in two sentences, or with a continuation. A scene is a few statements about a few people. Most questions
are about things that the text says, some about things that it does not say.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from edgedec.quantize.demo_pair import sketch_words as sketches
from edgedec.quantize.demo_pair import words
from edgedec.quantize.demo_pair.world import Question, World, draw_cast, polish, tidy

__all__ = ["Scene", "Sketch", "listed", "scene", "sketch"]

# Facts that a continuation tells anew: a question about them would then have two answers.
_CHANGES = {"place", "thing", "weather", "time", "day"}
_YES = {"happy": "Yes", "funny": "Yes", "sad": "No"}  # was the hero happy in the end?
_EXTRA_SHARE, _COLOR_SHARE, _PACKED_SHARE = 0.3, 0.85, 0.5


def listed(items: Sequence[str]) -> str:
    """Return "a, b and c"."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """One short story, and the texts and questions that a conversation about it needs.

    ``body`` is the text before the outcome, and ``outcomes`` holds the outcome for each mood. ``shorter`` is the story in
    two or three sentences, ``then`` a continuation. ``subjects`` are the words that a request may name. ``questions`` have
    answers that are right for every mood, ``endings`` have answers for one mood, and ``unknown`` are questions that the
    story does not answer. ``lasting`` and ``lasting_unknown`` are those that can still be asked after the continuation,
    ``later`` are questions about the continuation. ``named`` are all names in the story, in the order of their mention.
    """

    body: str
    mood: str
    outcomes: dict[str, str]
    shorter: dict[str, str]
    then: str
    title: str
    packed: tuple[str, ...]
    names: tuple[str, str]
    subjects: dict[str, str]
    questions: tuple[Question, ...]
    endings: dict[str, tuple[Question, ...]]
    unknown: tuple[str, ...]
    lasting: tuple[Question, ...]
    lasting_unknown: tuple[str, ...]
    later: tuple[Question, ...]
    named: tuple[str, ...]

    def text(self, mood: str = "") -> str:
        """Return the story in this mood, or in its own."""
        return f"{self.body} {self.outcomes[mood or self.mood]}"


@dataclass
class _Telling:
    world: World
    told: dict[str, str] = field(default_factory=dict)  # kind of question: its true value
    unknown: list[str] = field(default_factory=list)

    def say(self, options: Sequence[str]) -> str:
        return polish(self.world.expand(self.world.pick(options)))

    def ask(self, kind: str, value: str) -> Question:
        asks, answers = sketches.ASKS[kind]
        world = self.world
        answer = world.rng.choice(answers).replace("*", value)
        return Question(
            question=polish(world.expand(world.rng.choice(asks))),
            answer=polish(world.expand(answer)),
            wrong=(),
            value=tidy(world.expand(value)).rstrip("."),
        )


@cache
def _mentioned(event: tuple[str, ...]) -> frozenset[str]:
    """Return the words of an event, among them the animals that appear in it."""
    return frozenset(re.findall("[a-z]+", " ".join(event)))


def _prepare(rng: random.Random) -> tuple[World, str]:
    """Return a cast for a sketch, and the kind of its thing."""
    world = draw_cast(rng, animals=0.5, weather=rng.choice(("dry", "dry", "sunny", "night")), adjectives=())
    thing_kind = world.favorite(tuple(sketches.KINDS_OF_THINGS))
    nouns = sketches.KINDS_OF_THINGS[thing_kind]
    noun = world.favorite(nouns)
    told_color = rng.random() < _COLOR_SHARE
    thing = world.cast["t"]
    thing.update({"": noun, "a": f"a {thing['color']} {noun}" if told_color else f"a {noun}"})
    kinds = [
        kind for kind in sketches.KINDS_OF_THINGS if kind != "float" or thing_kind == "float"
    ]  # a boat needs water
    other = rng.choice([name for kind in kinds for name in sketches.KINDS_OF_THINGS[kind] if name != noun])
    world.cast["u"].update({"": other, "a": f"a {world.cast['u']['color']} {other}"})
    # No animal of an event is of the kind of the hero, the friend or the pet: "the dog" means one animal.
    here = {world.cast["h"]["kind"], world.cast["f"]["kind"]}
    event = world.pick([event for event in sketches.EVENTS[thing_kind] if not here & _mentioned(event)])
    trouble, fix, loss, joke = event
    here |= _mentioned(event) | ({"rabbit"} if "bunny" in here else set())
    names = {world.cast["h"][""], world.cast["f"][""]}
    count = rng.randrange(2, 7)
    items = [item for item in sketches.ITEMS if item not in (f"a {noun}", f"a {other}")]
    packed = [*rng.sample(items, rng.randrange(1, 3)), f"{words.NUMBERS[count]} {world.cast['d']['']}"]
    rng.shuffle(packed)
    world.cast["x"] = {
        "trouble": trouble,
        "fix": fix,
        "loss": loss,
        "joke": joke,
        "list": listed(packed),
        "age": words.NUMBERS[rng.randrange(4, 11)],
        "favorite": rng.choice(words.COLORS),
        "petkind": rng.choice([kind for kind in sketches.PETS if kind not in here]),
        "pet": rng.choice([name for name in words.ANIMAL_NAMES if name not in names]),
        "until": "the sun went down" if world.cast["w"]["time"] in ("morning", "afternoon") else "they were tired",
        "next": "day" if world.cast["w"]["time"] == "night" else world.cast["w"]["time"],
    }
    human = world.cast["h"]["kind"] in ("boy", "girl")
    world.cast["f"]["intro"] = world.pick(sketches.FRIENDS["child" if human else "animal"])
    if thing_kind == "float":
        (at, noun), (at2, noun2) = rng.sample(sketches.WATERS, 2)
        world.cast["p"], world.cast["p2"] = {"": noun, "at": at}, {"": noun2, "at": at2}
        others = [name for _, name in words.PLACES if name not in (noun, noun2)]
        world.cast["p3"] = {"": rng.choice(others)}
    world.packed = tuple(packed)
    return world, thing_kind


def _begin(telling: _Telling, kind: str) -> str:
    """Return the text before the outcome, and record the facts that it tells."""
    world, told, rng = telling.world, telling.told, telling.world.rng
    intro = world.pick(sketches.INTROS)
    told.update({"about": "[h]", "name": "[h]", "kind": "[h.kind]", "adj": "[h.adj]"})
    if "[p3]" in intro:
        told["home"] = "[p3]"
    first = [polish(world.expand(intro))]
    for extra, forms in sketches.EXTRAS.items():
        if rng.random() < _EXTRA_SHARE and len(first) < 3:
            first.append(telling.say(forms))
            told[extra] = {"treat": "[d]"}.get(extra, f"[x.{extra}]")
    when = rng.choice(("w", "w", "day", ""))
    told |= {"w": {"weather": "[w]", "time": "[w.time]"}, "day": {"day": "[w.day]"}, "": {}}[when]
    first.append(telling.say(sketches.OUTINGS[when]))
    told |= {"friend": "[f]", "fkind": "[f.kind]", "place": "[p]", "thing": "[t.a]"}
    first.append(telling.say(sketches.BROUGHT))
    if rng.random() < _PACKED_SHARE:
        first.append(telling.say(sketches.PACKED))
        told["packed"] = "[x.list]"
    if world.cast["t"]["color"] in world.cast["t"]["a"]:
        told["color"] = "[t.color]"
    told["trouble"] = "[x.trouble]"
    second = [telling.say(sketches.PLAY[kind]), telling.say(sketches.TROUBLE)]
    return f"{' '.join(first)}\n{' '.join(second)}"


def _end(telling: _Telling, mood: str) -> tuple[str, str, tuple[Question, ...]]:
    """Return the outcome in this mood, the shortened story, and the questions about the end."""
    world = telling.world
    key = {"happy": "fix", "sad": "loss", "funny": "joke"}[mood]
    feel = {"happy": "[h] was happy", "sad": "[h] was sad", "funny": "[h] laughed"}[mood]
    outcome = " ".join(telling.say(table[mood]) for table in (sketches.OUTCOME, sketches.FEELING, sketches.ENDINGS))
    world.cast["x"]["end"] = f"[x.{key}]"
    short = telling.say([form.replace("{fmood}", f"{feel}.") for form in sketches.SHORT])
    feeling = telling.ask("feel", f"{feel}.")
    if feeling.question.startswith("Was "):
        feeling = replace(feeling, answer=f"{_YES[mood]}, {feeling.answer}")
    return outcome, short, (telling.ask("end", f"[x.{key}]."), feeling)


def sketch(seed: int) -> Sketch:
    """Return the short story of this seed, whose original version has 50 to 120 words."""
    rng = random.Random(f"sketch {seed}")
    world, kind = _prepare(rng)
    telling = _Telling(world)
    mood = world.pick(("happy", "happy", "funny", "sad"))
    body = _begin(telling, kind)
    endings = {name: _end(telling, name) for name in sketches.MOODS}
    expand = world.expand
    if world.cast["h"]["kind"] == world.cast["f"]["kind"]:  # "the girl" would be ambiguous
        telling.told.pop("name")
    if world.cast["h"]["kind"] in ("boy", "girl"):
        telling.told["hero sex"] = "[h.kind]"
    questions = {name: telling.ask(name, value) for name, value in telling.told.items()}
    missing = ["weather", "time", "day", "age", "favorite", "pet", "treat", "packed", "home", "color"]
    if any("wind" in world.cast["x"][key] for key in ("trouble", "loss")):  # the wind tells something about the weather
        missing.remove("weather")
    unknown = {name: telling.ask(name, "").question for name in missing if name not in telling.told}
    here = {world.cast[role][""] for role in "tu"}
    absent = rng.choice([n for names in sketches.KINDS_OF_THINGS.values() for n in names if n not in here])
    unknown["absent"] = f"What color was the {absent}?"
    return Sketch(
        body=body,
        mood=mood,
        outcomes={name: value[0] for name, value in endings.items()},
        shorter={name: value[1] for name, value in endings.items()},
        then=telling.say(sketches.NEXT),
        title=" ".join(w if w in ("and", "the") else w.capitalize() for w in expand("[h] and the [t]").split()),
        packed=world.packed if "packed" in telling.told else (),
        names=(expand("[h]"), expand("[f]")),
        subjects={key: tidy(expand(f"[{key}]")) for key in ("h", "h.kind", "f", "f.kind", "t", "t.a", "p", "p.at")},
        questions=tuple(questions.values()),
        endings={name: value[2] for name, value in endings.items()},
        unknown=tuple(unknown.values()),
        lasting=tuple(question for name, question in questions.items() if name not in _CHANGES),
        lasting_unknown=tuple(ask for name, ask in unknown.items() if name not in _CHANGES),
        later=(telling.ask("next place", "[p2]"), telling.ask("next color", "[u.color]")),
        named=tuple(expand(name) for name in ("[h]", "[x.pet]", "[f]") if name != "[x.pet]" or "pet" in telling.told),
    )


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A few statements about a few people, and questions that they answer or do not answer."""

    text: str
    questions: tuple[Question, ...]
    unknown: tuple[str, ...]


_STATEMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    # statements with N for the name and V for the value; questions; answers
    "has": (("N has V.", "N owns V."), ("What does N have?", "Tell me what N has."), ("N has V.", "V.")),
    "likes": (("N likes V.", "N loves V."), ("What does N like?", "What does N love?"), ("N likes V.", "V.")),
    "is": (("N is V.", "N sits V.", "N plays V."), ("Where is N?", "In what place is N?"), ("N is V.", "V.")),
    "age": (("N is V years old.",), ("How old is N?", "What is the age of N?"), ("N is V years old.", "V years old.")),
    "wears": (("N wears V.", "N has V on."), ("What does N wear?", "What is N wearing?"), ("N wears V.", "V.")),
    "wants": (("N wants V.", "N would like V."), ("What does N want?", "What would N like?"), ("N wants V.", "V.")),
    "pet": (
        ("N has a pet named V.", "The pet of N is called V."),
        ("What is the name of N's pet?", "What is N's pet called?"),
        ("It is called V.", "V."),
    ),
}  # fmt: skip
_WHO = {
    "has": "Who has V?", "likes": "Who likes V?", "is": "Who is V?", "age": "Who is V years old?", "wears": "Who wears V?",
    "wants": "Who wants V?", "pet": "Who has a pet named V?",
}  # fmt: skip


# Kinds that imply each other: a person who wears a hat has a hat, and one who would like a ball likes it.
_OWNING = {"has", "wears", "pet"}
_ALIKE = (_OWNING, {"likes", "wants"})


def _values(kind: str, rng: random.Random, count: int) -> list[str]:
    """Return different values of one kind of statement."""
    nouns = [noun for names in sketches.KINDS_OF_THINGS.values() for noun in names]
    if kind in ("has", "wants", "wears"):
        pool: Sequence[str] = [
            f"a {rng.choice(words.COLORS)} {noun}" for noun in (sketches.CLOTHES if kind == "wears" else nouns)
        ]
    elif kind == "is":
        pool = [*(at for at, _ in words.PLACES), *sketches.ROOMS]
    else:
        pool = {"likes": words.TREATS, "age": words.NUMBERS[3:13], "pet": words.ANIMAL_NAMES}[kind]
    return rng.sample(list(pool), count)


def scene(seed: int) -> Scene:
    """Return the scene of this seed: two to five people with one or two statements about each."""
    rng = random.Random(f"scene {seed}")
    names = rng.sample((*words.GIRLS, *words.BOYS), rng.randrange(2, 6))
    stranger = rng.choice([name for name in words.GIRLS if name not in names])
    kinds = rng.sample(sorted(_STATEMENTS), rng.randrange(1, 3))
    if "has" in kinds and _OWNING & {*kinds} != {"has"}:  # "What does Mia have?" would have two answers
        kinds.remove("has")
    statements: list[tuple[str, str, str]] = []
    state: dict[tuple[str, str], str] = {}
    for kind in kinds:
        for name, value in zip(names, _values(kind, rng, len(names)), strict=True):
            state[kind, name] = value
            statements.append((kind, name, value))
    if rng.random() < 0.5:
        rng.shuffle(statements)
    lines = [_fill(rng.choice(_STATEMENTS[kind][0]), name, value) for kind, name, value in statements]
    if "has" in kinds and rng.random() < 0.5:
        giver, taker = rng.sample(names, 2)
        gift = state.pop(("has", giver))
        old = state.pop(("has", taker))
        noun = gift.removeprefix("a ")
        lines.append(f"{giver} gives the {noun} to {taker}.")
        state["has", taker] = f"{old} and {gift}"
    if "is" in kinds and rng.random() < 0.5:
        mover = rng.choice(names)
        place = rng.choice([at for at, _ in words.PLACES if at not in state.values()])
        state["is", mover] = place
        lines.append(f"Then {mover} goes away. Now {mover} is {place}.")
    questions = []
    for (kind, name), value in state.items():
        _, asks, answers = _STATEMENTS[kind]
        if rng.random() < 0.5:
            questions.append(_question(rng.choice(asks), rng.choice(answers), name, value))
        elif " and " not in value:
            verb = rng.choice(("N.", "It is N.", "N."))
            questions.append(_question(_WHO[kind], verb, name, value))
    if len(names) > 2:
        count = words.NUMBERS[len(names)]
        questions.append(
            Question(question="How many people are there?", answer=f"There are {count}.", wrong=(), value=count)
        )
    untold = [
        kind
        for kind in _STATEMENTS
        if not any(kind == told or {kind, told} <= group for told in kinds for group in _ALIKE)
    ]
    other = rng.choice(untold)
    unknown = [
        _fill(rng.choice(_STATEMENTS[other][1]), rng.choice(names), ""),
        _fill(rng.choice(_STATEMENTS[kinds[0]][1]), stranger, ""),
    ]
    rng.shuffle(questions)
    text = polish(" ".join(lines))
    return Scene(text=text, questions=tuple(questions), unknown=tuple(polish(text) for text in unknown))


def _fill(form: str, name: str, value: str) -> str:
    return " ".join(
        word.replace("N", name, 1)
        if word.rstrip(".?,'s") == "N"
        else word.replace("V", value, 1)
        if word.rstrip(".?") == "V"
        else word
        for word in form.split(" ")
    )


def _question(ask: str, answer: str, name: str, value: str) -> Question:
    said = _fill(answer, name, value)
    right = value if value in said else name
    return Question(question=polish(_fill(ask, name, value)), answer=polish(said), wrong=(), value=tidy(right))
