"""Generate training text of the embedded model: stories of a simulated small world, questions about them.

A story depends on its seed alone. The seed draws a cast (children or talking animals, grown-ups, things with a colour and a
material, places, the weather) and one of the ``plots``, each a chain of beats with many wordings. Questions are
drawn from the same cast, so their answers are true by construction. A question is left out if the chosen wordings do not
mention its answer.

Templates: ``{a|b}`` is a choice, ``<name>`` a phrase from ``PHRASES``, ``[x.attr]`` a property of cast member ``x``.

Source: derived here; the style follows TinyStories (Eldan and Li 2023, arXiv:2305.07759), from which no text is used.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from edgedec.errors import UsageError
from edgedec.quantize.demo_pair import words
from edgedec.quantize.demo_pair.plots import Ask, Plot, plots

__all__ = ["Question", "Tale", "World", "draw_cast", "polish", "repeated_share", "tale", "tidy"]

MIN_WORDS, MAX_WORDS = 90, 220
MAX_REPEATED_SHARE = 0.09  # limit on the share of repeated 4-grams; a story above it is drawn again
_TOKEN = re.compile(r"(\{|\||\}|\[\w+(?:\.\w+)?\]|<\w+>)")
_SENTENCE = re.compile(r'(^|[.!?] |\." |\n|(?:^|[.!?] |\." |\n)")([a-z])')
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])(?!one\b|once\b|use|uni)")
_WORD = re.compile(r"[a-z']+")
_SPACES = re.compile(r"  +")
_STYLES, _HABIT, _FAVORITE, _SUITED, _TYPICAL = 12, 0.6, 0.4, 0.8, 0.4
# The comma of an apposition before another mark, and a full stop after another mark.
_COMMA = re.compile(r",(?=[.,!?])|(?<=[!?])\.(?!\w)|(?<=[!?]\")\.")
_PRONOUNS = {
    "m": {"he": "he", "him": "him", "his": "his", "self": "himself"},
    "f": {"he": "she", "him": "her", "his": "her", "self": "herself"},
}
_Node = tuple["str | tuple[str, object]", ...]


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with its true answer and three false ones of the same form."""

    question: str
    answer: str
    wrong: tuple[str, ...]
    value: str = ""  # the words of the answer that must be right; empty: the words that no wrong answer has


@dataclass(frozen=True, kw_only=True)
class Tale:
    """A story, its subjects (for requests such as "Tell me a story about Lily and a red ball."), and questions."""

    text: str  # paragraphs separated by "\n"
    about: tuple[str, ...]
    questions: tuple[Question, ...]
    unknown: tuple[str, ...] = ()  # questions that the story does not answer


@cache
def _parse(template: str) -> _Node:
    """Return the template's tree of strings, ("slot", "h.he"), ("phrase", "said") and ("choice", branches)."""
    stack: list[list[list[str | tuple[str, object]]]] = [[[]]]
    for token in _TOKEN.split(template):
        if token == "{":
            stack.append([[]])
        elif token == "|" and len(stack) > 1:
            stack[-1].append([])
        elif token == "}":
            if len(stack) == 1:
                raise UsageError(f"story template {template!r} closes a brace that it did not open; remove it")
            branches = stack.pop()
            stack[-1][-1].append(("choice", tuple(tuple(branch) for branch in branches)))
        elif token.startswith("["):
            stack[-1][-1].append(("slot", token[1:-1]))
        elif token.startswith("<") and token.endswith(">"):
            stack[-1][-1].append(("phrase", token[1:-1]))
        elif token:
            stack[-1][-1].append(token)
    if len(stack) > 1:
        raise UsageError(f"story template {template!r} leaves a brace open; close it")
    return tuple(stack[0][0])


def tidy(text: str) -> str:
    """Return the text with single spaces, one comma where two meet, and "an" before a vowel."""
    return _ARTICLE.sub(r"\1n ", _SPACES.sub(" ", _COMMA.sub("", text.strip())))


def polish(text: str) -> str:
    """Return the text tidied, with a capital at each start of a sentence."""
    text = tidy(text)
    return _SENTENCE.sub(lambda match: match.group(1) + match.group(2).upper(), text)


@cache
def _hash(text: str) -> int:
    """Return a number that depends on the text alone, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


@dataclass
class World:
    """One draw of the cast, and the phrases used so far."""

    rng: random.Random
    cast: dict[str, dict[str, str]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)  # phrases used so far, to avoid repeating them
    style: int = 0  # number of the narrative style
    packed: tuple[str, ...] = ()  # things that the heroes of a sketch take along

    def pick(self, options: Sequence[Any]) -> Any:
        """Return one of the options, mostly the one that belongs to the style.

        The hero's name determines the style. The likeliest continuation therefore differs from name to name, and a model
        that decodes greedily tells different stories.
        """
        if self.rng.random() < _HABIT:
            return options[_hash(f"{self.style} {options[0]}") % len(options)]
        return self.rng.choice(options)

    def favorite(self, pool: Sequence[Any]) -> Any:
        """Return a member of the pool, often the hero's favorite, which depends on the hero's name."""
        if self.rng.random() < _FAVORITE:
            return pool[_hash(f"{self.cast['h']['']} {pool[0]}") % len(pool)]
        return self.rng.choice(pool)

    def sample(self, pool: Sequence[Any], count: int) -> list[Any]:
        """Return ``count`` different members of the pool, the first of them as ``favorite`` draws it."""
        first = self.favorite(pool)
        return [first, *self.rng.sample([member for member in pool if member != first], count - 1)]

    def expand(self, template: str) -> str:
        return self._render(_parse(template))

    def _render(self, node: _Node) -> str:
        parts: list[str] = []
        for part in node:
            if isinstance(part, str):
                parts.append(part)
            elif part[0] == "choice":
                parts.append(self._render(self.pick(part[1])))  # type: ignore[arg-type]
            elif part[0] == "phrase":
                parts.append(self.expand(self.fresh(words.PHRASES[str(part[1])])))
            else:
                parts.append(self._slot(str(part[1])))
        return "".join(parts)

    def _slot(self, slot: str) -> str:
        who, _, attribute = slot.partition(".")
        facts = self.cast[who.lower()]
        value = self.expand(facts[attribute.lower()])
        if attribute.lower() == "intro":
            facts["intro"] = "[f]"  # a friend is introduced only once
        return value[0].upper() + value[1:] if who[0].isupper() or attribute[:1].isupper() else value

    def fresh(self, options: Sequence[str]) -> str:
        """Return one of the options that were not used before; if all were used, any of them."""
        left = [option for option in options if option not in self.told] or list(options)
        choice: str = self.pick(left)
        self.told.add(choice)
        return choice

    def person(self, role: str, name: str, kind: str, sex: str, **more: str) -> None:
        self.cast[role] = {"": name, "kind": kind, "sex": sex, **_PRONOUNS[sex], **more}


@cache
def _typical_heroes(plot: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names whose bearers have the adventures of this plot more often than others."""
    known = [one.name for one in plots()]
    return tuple(name for name in names if known[_hash(f"hero {name}") % len(known)] == plot)


def draw_cast(rng: random.Random, *, animals: float, weather: str, adjectives: Sequence[str], plot: str = "") -> World:
    """Return a cast in which no two members share a name, colour or place, so that every question has one answer.

    Args:
        animals: the share of casts whose heroes are animals.
        weather: a key of ``words.WEATHER``.
        adjectives: words that suit the hero, one of which is used in most draws; empty: any word.
        plot: name of the plot, which makes some names of heroes likelier. A name alone therefore suggests a plot, and a
            model that decodes greedily tells different stories; empty: all names are equally likely.
    """
    world = World(rng)
    animal = rng.random() < animals
    sexes = rng.choice(("fm", "mf", "fm", "mf", "ff", "mm"))
    kinds = rng.sample(words.HERO_ANIMALS, 2)
    girls, boys, pets = (rng.sample(pool, 3) for pool in (words.GIRLS, words.BOYS, words.ANIMAL_NAMES))
    every, drawn = (
        (words.ANIMAL_NAMES, pets) if animal else (words.GIRLS, girls) if sexes[0] == "f" else (words.BOYS, boys)
    )
    typical = [name for name in _typical_heroes(plot, tuple(every)) if name not in drawn]
    if typical and rng.random() < _TYPICAL:
        drawn[0] = rng.choice(typical)
    for i, role in enumerate("hf"):
        sex = sexes[i]
        name = pets[i] if animal else (girls if sex == "f" else boys)[i]
        kind = kinds[i] if animal else {"f": "girl", "m": "boy"}[sex]
        suited = adjectives if adjectives and role == "h" and rng.random() < _SUITED else words.HERO_WORDS
        world.person(role, name, kind, sex, adj=rng.choice(suited))
    world.style = _hash(world.cast["h"][""]) % _STYLES
    world.cast["f"]["intro"] = world.pick(words.FRIEND_ANIMAL if animal else words.FRIEND_CHILD)
    name, kin, sex = rng.choice(words.GROWN_UPS)
    world.person("g", name, "grown-up", sex, kin=kin)
    name, sex = rng.choice(words.NEIGHBOURS)
    world.person("e", name, "neighbor", sex)
    colors = world.sample(words.COLORS, 4)
    sizes = rng.sample(words.SIZES, 3)
    for i, (role, (noun, materials)) in enumerate(zip("tu", world.sample(words.THINGS, 2), strict=True)):
        full = f"{sizes[i]} {colors[i]} {noun}" if rng.random() < 0.4 else f"{colors[i]} {noun}"
        world.cast[role] = {
            "": noun,
            "a": f"a {full}",
            "the": f"the {colors[i]} {noun}",
            "color": colors[i],
            "size": sizes[i],
            "mat": rng.choice(materials),
        }
    world.cast["c"] = {"": colors[2], "two": colors[3]}
    for role, pool in (("p", words.PLACES), ("s", words.SPOTS), ("i", words.INDOOR_SPOTS)):
        first, second, third = world.sample(pool, 3)
        for key, (at, noun) in ((role, first), (role + "2", second), (role + "3", third)):
            world.cast[key] = {"": noun, "at": at}
    kind = world.favorite([kind for kind in words.WILD_ANIMALS if kind not in kinds])
    world.cast["a"] = {"": kind, "size": rng.choice(("little", "tiny", "small", "young"))}
    number = rng.randrange(3, 10)
    world.cast["n"] = {"": words.NUMBERS[number], "more": words.NUMBERS[number + 1], "less": words.NUMBERS[number - 1]}
    world.cast["d"] = {"": world.favorite(words.TREATS)}
    opening = world.pick(words.WHEN)
    world.cast["w"] = {
        "": world.favorite(words.WEATHER[weather]),
        "time": rng.choice(words.TIMES[weather]),
        "when": opening,
        "season": words.WEATHER_SEASON.get(weather, "{spring|summer|autumn}"),
    }
    world.cast["w"]["day"], world.cast["w"]["day2"] = rng.sample(words.DAYS, 2)
    world.cast["z"] = {"": rng.choice([name for name in words.BOYS if name not in boys])}
    return world


def _draw(rng: random.Random, plot: Plot) -> World:
    """Return a cast for the plot, with the values of its ``LET`` lines."""
    animals = 0.3 if plot.hero == "any" else 0.0
    adjectives = words.SUITED.get(plot.name, ())
    world = draw_cast(rng, animals=animals, weather=plot.weather, adjectives=adjectives, plot=plot.name)
    for names, rows in plot.lets:
        for key, value in zip(names, world.favorite(rows), strict=True):
            world.cast[key] = {"": value}
    return world


def repeated_share(text: str) -> float:
    """Return the share, 0 to 1, of the 4-word sequences that occurred earlier in the text."""
    told = _WORD.findall(text.lower())
    grams = list(zip(told, told[1:], told[2:], told[3:], strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _tell(world: World, plot: Plot, outcome: str, detail: float) -> str:
    """Return the text of a story; ``detail`` is the share of optional beats that are included."""
    rng = world.rng
    opening = [world.pick(words.ONCE if rng.random() < 0.34 else words.OPENINGS)]
    if rng.random() < detail:
        opening.append(world.pick(words.HOBBIES))
    text = " ".join(polish(world.expand(line)) for line in opening)
    for beat in plot.beats:
        if (beat.optional and rng.random() > detail) or beat.outcome not in ("", outcome):
            continue
        gap = "\n" if beat.paragraph and rng.random() < 0.85 else " "
        text += gap + polish(world.expand(world.pick(beat.lines)))
    if rng.random() < detail + 0.1:
        endings = words.NIGHT_ENDINGS if plot.weather == "night" else words.ENDINGS
        text += rng.choice(("\n", " ")) + polish(world.expand(world.pick(endings)))
    return text


def _spoken(text: str) -> str:
    """Return the words in lower case, each between single spaces, so that ``in`` finds whole words."""
    return f" {' '.join(_WORD.findall(text.lower()))} "


def _pool(world: World, name: str, text: str) -> list[str]:
    """Return values of the kind ``name``; values that the ``_spoken`` story mentions come first."""
    pools: dict[str, Iterable[str]] = {
        "color": words.COLORS,
        "place": (at for at, _ in words.PLACES),
        "spot": (at for at, _ in words.SPOTS),
        "inside": (at for at, _ in words.INDOOR_SPOTS),
        "thing": (f"a {noun}" for noun, _ in words.THINGS),
        "material": sorted({material for _, materials in words.THINGS for material in materials}),
        "animal": (f"a {kind}" for kind in words.WILD_ANIMALS),
        "kind": (f"a {kind}" for kind in (*words.HERO_ANIMALS, "girl", "boy")),
        # A rainy day may be stormy as well.
        "wrong_weather": words.NOT_RAINY if world.cast["w"][""] == "rainy" else words.WRONG_WEATHER,
        "day": words.DAYS,
        "feel": words.FEELINGS,
        "treat": words.TREATS,
        "number": words.NUMBERS[2:11],
    }
    if name == "stranger":
        options = [
            n for n in world.rng.sample((*words.GIRLS, *words.BOYS, *words.ANIMAL_NAMES), 12) if _spoken(n) not in text
        ]
    elif name == "who":
        people = [world.cast[role][""] for role in "hfge"]
        names = (*words.GIRLS, *words.BOYS, "Mom", "Dad", "Grandma")
        options = [*people, *world.rng.sample(names, 8)]
    else:
        options = list(pools[name]) if name in pools else [world.expand(option) for option in name.split(" / ")]
    options = list(dict.fromkeys(options))
    world.rng.shuffle(options)
    return sorted(options, key=lambda option: _spoken(option.removeprefix("a ")) not in text)


def _pose(world: World, ask: Ask, text: str) -> Question | None:
    """Return the question, or None if the story does not contain the answer."""
    right = world.expand(ask.right)
    if " / " in ask.pool:  # the answer may have been told in other words, but must contain the long ones
        known = all(f" {word} " in text for word in _WORD.findall(right.lower()) if len(word) > 4)
    elif ask.right == "[w]":
        known = any(_spoken(world.expand(form)) in text for form in words.WEATHER_TOLD)
    elif ask.right == "[w.day]":  # a story that tells a second day has no single right answer
        known = [day for day in words.DAYS if f" {day.lower()} " in text] == [right]
    else:
        known = _spoken(right.removeprefix("a ")) in text
    if not known:
        return None
    answer = world.rng.choice(ask.answers)
    pool = [option for option in _pool(world, ask.pool, text) if option.lower() != right.lower()][:3]
    world.rng.shuffle(pool)
    result = [polish(world.expand(answer.replace("*", option))) for option in (right, *pool)]
    question = polish(world.expand(world.rng.choice(ask.questions)))
    return Question(question=question, answer=result[0], wrong=tuple(result[1:]))


def _questions(world: World, plot: Plot, outcome: str, text: str) -> tuple[Question, ...]:
    own = [ask for ask in plot.asks if ask.outcome in ("", outcome)]
    alike = world.cast["f"]["kind"] == world.cast["h"]["kind"]  # then "the boy" may be either of the two
    shared = [
        Ask(questions=q, answers=a, right=right, pool=pool, outcome="")
        for q, a, right, pool in words.ASKS
        if not (alike and "[h.kind]" in q[0])
    ]
    world.rng.shuffle(own)
    world.rng.shuffle(shared)
    count = world.rng.randrange(3, 7)
    result: dict[str, Question] = {}
    text = _spoken(text)
    for ask in (*own[:4], *shared):
        posed = _pose(world, ask, text)
        if posed is not None and len(result) < count:
            result[ask.right] = posed
    return tuple(result.values())


def _attempt(plot: Plot, rng: random.Random, detail: float) -> Tale | None:
    world = _draw(rng, plot)
    outcome: str = world.pick(plot.outcomes)
    text = _tell(world, plot, outcome, detail)
    if not MIN_WORDS <= len(text.split()) <= MAX_WORDS or repeated_share(text) > MAX_REPEATED_SHARE:
        return None
    questions = _questions(world, plot, outcome, text)
    if len(questions) < 3:
        return None
    about = (world.expand("[h]"), tidy(world.expand(plot.about)))
    return Tale(text=text, about=about, questions=questions, unknown=_unknown(world, text))


def _unknown(world: World, text: str) -> tuple[str, ...]:
    """Return questions that the text does not answer."""
    spoken = _spoken(text)
    result = [
        polish(world.expand(world.rng.choice(asks)))
        for asks, marks in words.UNTOLD
        if not any(m in spoken for m in marks)
    ]
    if not any(f" {day.lower()} " in spoken for day in words.DAYS):
        result.append(world.rng.choice(("What day was it?", "On what day did it happen?")))
    return tuple(result)


def tale(seed: int) -> Tale:
    """Return the story of this seed, 90 to 220 words, with 3 to 6 questions."""
    rng = random.Random(f"tale {seed}")
    plot = rng.choice(plots())
    for attempt in range(200):
        story = _attempt(plot, rng, max(0.0, 0.65 - 0.15 * attempt) if attempt < 20 else rng.random())
        if story is not None:
            return story
    raise UsageError(f"no story of {MIN_WORDS} to {MAX_WORDS} words for seed {seed} in 200 draws; use another seed")
