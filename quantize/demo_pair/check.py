"""Check generated text: whether names and pronouns are consistent, and whether an answer is right.

The checks judge text that a model wrote, so they use only its words and the grammar of the world, no cast and no seed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from edgedec.quantize.demo_pair import sketch_words as sketches
from edgedec.quantize.demo_pair import words
from edgedec.quantize.demo_pair.world import Question

__all__ = ["is_right", "name_faults", "names_in", "says_unknown"]

_WORD = re.compile(r"[a-z0-9']+")
_GROWN = {"Mom": "f", "Dad": "m", "Grandma": "f", "Grandpa": "m", "Jenny": "f", "Joe": "m"}
_SURNAMES = {name.split()[-1]: sex for name, sex in words.NEIGHBOURS}
_SEX = {**dict.fromkeys(words.GIRLS, "f"), **dict.fromkeys(words.BOYS, "m")}
_PRONOUNS = {"he": "m", "him": "m", "his": "m", "himself": "m", "she": "f", "her": "f", "hers": "f", "herself": "f"}
_KIN = {
    **dict.fromkeys(("mom", "mother", "grandma", "aunt", "girl", "woman", "sister", "queen", "lady"), "f"),
    **dict.fromkeys(("dad", "father", "grandpa", "uncle", "boy", "man", "brother", "king", "snowman"), "m"),
}
_UNKNOWN = ("i do not know", "does not say")


_KINDS = (*words.HERO_ANIMALS, *words.WILD_ANIMALS, *sketches.PETS, "girl", "boy", "child", "stranger", "runner")
# Text before and after a mention of a name that introduces the name.
_BEFORE = re.compile(
    rf"(?:\b(?:{'|'.join(_KINDS)}),? (?:named|called) |"
    r"\b(?:named|called|is called|was called|It was|it was|class:|town:|street:|friend,?|cousin|neighbor|playmate) )$"
)
_AFTER = re.compile(
    rf"^(?: from next door|,? the (?:\w+ )?(?:{'|'.join(_KINDS)})\b|, an? (?:\w+ )?(?:{'|'.join(_KINDS)})\b)"
)
_PEOPLE = {**_SEX, **_GROWN, **_SURNAMES, **_KIN}
_NAME_LIKE = re.compile(r"[A-Za-z]+")
_PRONOUN = re.compile(r"\b(?:he|him|his|himself|she|her|hers|herself)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"[^.!?\n]+[.!?\n\"]*")
# Sentences in which a pronoun may mean a friend who is not named.
_OTHERS = re.compile(r"took (?:his|her) hand|saw something|his (?:neck|head)|(?:in|from) (?:his|her) bag")
_OWN = re.compile(r"\b(?:his|himself|herself|he|she)\b")
_RACER = re.compile(r"^ won the race|^ had won the race")


@cache
def _given_names() -> re.Pattern[str]:
    names = (*words.GIRLS, *words.BOYS, *words.ANIMAL_NAMES)
    return re.compile(rf"\b(?:{'|'.join(sorted(names, key=len, reverse=True))})\b")


def names_in(text: str) -> list[str]:
    """Return the given names in the text, each once, in the order of their first mention."""
    return list(dict.fromkeys(match.group() for match in _given_names().finditer(text)))


def name_faults(text: str) -> list[str]:
    """Return the faults in the names and pronouns of a story; an empty list for a consistent story.

    A fault is a name other than the hero's that is not introduced, a pronoun that does not match the sex of a child's name,
    or the absence of any name.
    """
    if not names_in(text):
        return ["nobody is named"]
    return [*_strangers(text), *_pronoun_faults(text)]


def _strangers(text: str) -> list[str]:
    """Return faults for the names that are not introduced. The first name is the hero's and needs no introduction."""
    result, known = [], set(names_in(text)[:1])
    hero = next(iter(known))
    for match in _given_names().finditer(text):
        name, before, after = match.group(), text[: match.start()], text[match.end() :]
        if name in known:
            continue
        joined = re.search(rf"\b{hero} and $|\bwith $", before) and _AFTER.match(after)
        if _BEFORE.search(before) or _AFTER.match(after) or _RACER.match(after) or joined or _is_pet(before, after):
            known.add(name)
        else:
            result.append(f"{name} comes from nowhere")
            known.add(name)
    return result


def _is_pet(before: str, after: str) -> bool:
    """Return whether an animal is given the name, as in: "Does it have a name?" asked Ben. "Lucky," said Mia."""
    return "have a name" in before[-80:] and after.startswith(',"')


def _pronoun_faults(text: str) -> list[str]:
    """Return faults for pronouns that match no person named so far, or not the only person that their clause names.

    Only stories in which every name has a known sex are judged, that is, stories about children.
    """
    if not all(name in _SEX for name in names_in(text)):
        return []
    result: list[str] = []
    possible: set[str] = set()
    for sentence in _SENTENCE.findall(text):
        people = [(word, _PEOPLE[word]) for word in _NAME_LIKE.findall(sentence) if word in _PEOPLE]
        possible |= {sex for _, sex in people}
        wrong = [word for word in _PRONOUN.findall(sentence) if _PRONOUNS[word.lower()] not in possible]
        result += [f"nobody here is {word!r}" for word in wrong]
        if len({word for word, _ in people}) == 1 and people[0][0] in _SEX and not _OTHERS.search(sentence):
            (name, sex), *_ = people
            tail = sentence[sentence.index(name) :]
            result += [
                f"{name} is not {word!r}: {sentence.strip()}" for word in _OWN.findall(tail) if _PRONOUNS[word] != sex
            ]
    return result


def says_unknown(answer: str) -> bool:
    """Return whether the answer says that the story does not tell."""
    return any(mark in answer.lower() for mark in _UNKNOWN)


def _told(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def is_right(answer: str, question: Question) -> bool:
    """Return whether the answer contains the words that distinguish the right answer.

    If the question has a ``value``, the answer must contain it; otherwise it must contain the words of the right answer that
    the wrong answers do not have. "I do not know" is right only if the right answer says so, too.
    """
    if says_unknown(question.answer) or says_unknown(answer):
        return says_unknown(question.answer) and says_unknown(answer)
    said = _told(answer)
    if question.value:
        value = _told(re.sub(r"^(?:a|an|the) ", "", question.value.lower()))
        return any(said[at : at + len(value)] == value for at in range(len(said) - len(value) + 1))
    return _contains(said, _distinct(question.answer, question.wrong)) and not any(
        (own := _distinct(wrong, [question.answer, *(w for w in question.wrong if w != wrong)]))
        and _contains(said, own)
        for wrong in question.wrong
    )


def _distinct(right: str, others: Sequence[str]) -> list[str]:
    """Return the words of ``right`` that are missing from at least one of the others."""
    common = set(_told(right)).intersection(*(set(_told(other)) for other in others)) if others else set()
    return [word for word in _told(right) if word not in common]


def _contains(told: Sequence[str], needed: Sequence[str]) -> bool:
    return all(word in told for word in needed)
