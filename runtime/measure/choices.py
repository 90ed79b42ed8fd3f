"""Multiple-choice accuracy: choose the text that a target considers the likeliest continuation of a question.

docs/evaluation.md defines the file and the score.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from edgedec.bundle.missing import spelling_of_path
from edgedec.errors import EdgedecError, UsageError
from edgedec.host.spelling import did_you_mean
from edgedec.progress import Progress, silent
from edgedec.runtime.measure.perplexity import F64, check_finite, check_ids, log_likelihoods, next_log_probs
from edgedec.runtime.protocols import I32, Limits, State, Target
from edgedec.runtime.text.tokenizer import Tokenizer

__all__ = [
    "ChoiceScore",
    "EncodedItem",
    "Item",
    "Tally",
    "check_lengths",
    "encode_items",
    "read_items",
    "score_encoded",
    "score_items",
    "wilson",
]

MAX_CHOICES = 26  # choices of a question at most, one per letter
MAX_LINE_BYTES = 1 << 20  # bytes of a line at most; no context has room for a longer question
_NEEDED, _OPTIONAL = ("question", "choices", "answer"), ("id", "category")
_Z = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True, kw_only=True)
class Item:
    """A question. Types are checked, too, because the contents may come from an untrusted file.

    Parameters:
        question: text before each choice, verbatim.
        choices: 2 to 26 different texts, none of them empty.
        answer: index of the right choice.
        id: unique name of the question in its file.
        category: name of the category; the items of a category are also counted together.
        where: file and line, for error messages.

    Raises:
        UsageError: a value is invalid; the message names ``where``, the rule and the value.
    """

    question: str
    choices: tuple[str, ...]
    answer: int
    id: str | None = None
    category: str | None = None
    where: str = "the question"

    def __post_init__(self) -> None:
        if not isinstance(self.choices, tuple):
            self._refuse(f"choices must be a list of 2 to {MAX_CHOICES} texts", self.choices)
        if not 2 <= len(self.choices) <= MAX_CHOICES:
            raise UsageError(
                f"{self.where}: choices must be a list of 2 to {MAX_CHOICES} texts, the right answer among them; this list "
                f"has {len(self.choices)}"
            )
        texts = {"question": self.question} | {f"choices[{at}]": text for at, text in enumerate(self.choices)}
        texts |= {key: value for key in _OPTIONAL if (value := getattr(self, key)) is not None}
        for name, text in texts.items():
            if not isinstance(text, str):
                self._refuse(f"{name} must be a text", text)
            if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
                self._refuse(f"{name} must be valid Unicode, without half of a surrogate pair", text)
            if not text and name != "question":
                self._refuse(f"{name} must not be empty", text)
        for at, choice in enumerate(self.choices):
            if self.choices.index(choice) != at:
                raise UsageError(f"{self.where}: choices must all differ; {reprlib.repr(choice)} is there twice")
        if type(self.answer) is not int or not 0 <= self.answer < len(self.choices):
            self._refuse(f"answer must be the index of a choice, 0 to {len(self.choices) - 1}", self.answer)

    def _refuse(self, rule: str, value: object) -> NoReturn:
        raise UsageError(f"{self.where}: {rule}, not {reprlib.repr(value)}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is there twice")
    return result


def _parse(where: str, line: bytes) -> Item:
    """Return the item of a line.

    Raises:
        UsageError: the line is not one JSON object with valid keys and values.
    """
    try:
        entry = json.loads(line.decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 at byte {error.start} of the line; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: must be one JSON object: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # a repeated key, a number with thousands of digits, deep nesting
        raise UsageError(f"{where}: must be one JSON object: {error}") from None
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: must be one JSON object, not {reprlib.repr(entry)}")
    for key in entry:
        if key not in (*_NEEDED, *_OPTIONAL):
            known = (*_NEEDED, *_OPTIONAL)
            raise UsageError(
                f"{where}: unknown key {reprlib.repr(key)}; known: {', '.join(known)}{did_you_mean(key, known)}"
            )
    for key in _NEEDED:
        if key not in entry:
            raise UsageError(f"{where}: has no {key!r}; needed: {', '.join(_NEEDED)}")
    for key in _OPTIONAL:
        if key in entry and entry[key] is None:
            raise UsageError(f"{where}: {key} must be a text, not None; leave the key out")
    if isinstance(entry["choices"], list):
        entry["choices"] = tuple(entry["choices"])
    return Item(**entry, where=where)


def read_items(path: Path) -> list[Item]:
    """Return the questions of a JSON Lines file.

    Raises:
        UsageError: the file cannot be read or has no question, or a line is not in the format of docs/evaluation.md; the
            message names file, line, rule and value.
    """
    items: list[Item] = []
    lines: dict[str, int] = {}  # id -> line
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
                where = f"{path}: line {number}"
                if len(line) > MAX_LINE_BYTES:
                    raise UsageError(f"{where}: is longer than {MAX_LINE_BYTES} bytes; give one question per line")
                if not line.strip():
                    continue
                item = _parse(where, line.rstrip())
                if item.id is not None and lines.setdefault(item.id, number) != number:
                    raise UsageError(
                        f"{where}: id must be unique; line {lines[item.id]} has {reprlib.repr(item.id)} as well"
                    )
                items.append(item)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file; {spelling_of_path(path)}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if not items:
        raise UsageError(f"{path}: has no question; give one JSON object per line")
    return items


@dataclass(frozen=True, kw_only=True)
class EncodedItem:
    """The ids of a question and its choices.

    Members:
        item: the question.
        context: int32 [n >= 1], the common prefix of the question with all choices.
        choices: int32 [>= 1] for each choice, the ids after the context.
    """

    item: Item
    context: I32
    choices: tuple[I32, ...]

    @property
    def rows(self) -> int:
        """Rows of the cache that scoring takes. The last token of a choice needs none, because it is only predicted."""
        return len(self.context) + max(map(len, self.choices)) - 1


def _common_prefix(left: I32, right: I32) -> int:
    """Return the length of the common prefix."""
    n = min(len(left), len(right))
    differ = np.flatnonzero(left[:n] != right[:n])
    return int(differ[0]) if len(differ) else n


def _encode(tokenizer: Tokenizer, item: Item, bos: int | None) -> EncodedItem:
    def encode(text: str) -> I32:
        ids = tokenizer.encode(text, add_special=False)
        if bos is None or (len(ids) and ids[0] == bos):
            return ids
        return np.concatenate([[bos], ids]).astype(np.int32)

    try:
        # Spaces at the end of the question belong to the choice: models are trained on the token " Paris", not on a separate
        # space before "Paris".
        question = encode(item.question.rstrip())
        whole = [encode(item.question + choice) for choice in item.choices]
    except UsageError as error:
        raise UsageError(f"{item.where}: {error}") from error
    common = [_common_prefix(question, ids) for ids in whole]
    for at, ids in enumerate(whole):
        if common[at] == len(ids):
            raise UsageError(f"{item.where}: choices[{at}] has no token in this model's vocabulary; write it otherwise")
    # If the tokenizer merges characters of question and choice in any choice, the boundary moves for all of them, so that
    # all choices have the same context.
    start = min(common)
    if not start:
        raise UsageError(
            f"{item.where}: the choices have no common token before them, and the model has no BOS token; "
            "give the question some text"
        )
    return EncodedItem(item=item, context=whole[0][:start], choices=tuple(ids[start:] for ids in whole))


def encode_items(
    tokenizer: Tokenizer, items: Sequence[Item], *, bos: int | None, vocab_limit: int
) -> list[EncodedItem]:
    """Encode each question and its choices, and separate the prefix that the question shares with all of them.

    Args:
        tokenizer: the model's tokenizer.
        items: the questions.
        bos: id with which every text begins, if the model has one.
        vocab_limit: number of ids of the model.

    Raises:
        UsageError: a choice has no token, or the choices have no common token before them; the message names the line.
        BundleError: the tokenizer returns an id that the model does not have.
    """
    encoded = []
    for item in items:
        entry = _encode(tokenizer, item, bos)
        check_ids(np.concatenate([entry.context, *entry.choices]), vocab_limit)
        encoded.append(entry)
    return encoded


def check_lengths(encoded: Sequence[EncodedItem], positions: int) -> None:
    """Check that all questions fit a context of ``positions`` rows.

    Raises:
        EdgedecError: a question with its longest choice takes more rows; the message names the line.
    """
    for entry in encoded:
        if entry.rows > positions:
            raise EdgedecError(
                f"{entry.item.where}: the question and its longest choice have {entry.rows} tokens, "
                f"the context holds {positions}; shorten them or raise --ctx-size"
            )


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % confidence interval (low, high) of a share, for ``trials`` >= 1.

    Unlike the normal approximation it is within 0..1 and useful for few trials. Source: Wilson, Journal of the American
    Statistical Association 22 (1927) 209.
    """
    share, z2 = successes / trials, _Z * _Z / trials
    centre, half = share + z2 / 2, _Z * np.sqrt((share * (1 - share) + z2 / 4) / trials)
    low, high = float((centre - half) / (1 + z2)), float((centre + half) / (1 + z2))
    # For shares of 0 and 1 the exact ends are 0 and 1, which rounding may miss.
    return (0.0 if not successes else low), (1.0 if successes == trials else high)


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts of right answers.

    Members:
        items: number of questions.
        correct: right answers by the sum of a choice's log-likelihoods.
        correct_norm: right answers by this sum divided by the number of UTF-8 bytes of the choice.
        chance: expected share of right answers by guessing.
    """

    items: int
    correct: int
    correct_norm: int
    chance: float

    @property
    def accuracy(self) -> float:
        """Share of ``correct``, 0 to 1."""
        return self.correct / self.items

    @property
    def accuracy_norm(self) -> float:
        """Share of ``correct_norm``, 0 to 1."""
        return self.correct_norm / self.items

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of ``accuracy``."""
        return wilson(self.correct, self.items)

    @property
    def interval_norm(self) -> tuple[float, float]:
        """95 % confidence interval of ``accuracy_norm``."""
        return wilson(self.correct_norm, self.items)


@dataclass(frozen=True, kw_only=True)
class ChoiceScore(Tally):
    """The score of a file.

    Members:
        by_category: counts of each category, in the order of the file.
        log_likelihoods: log-likelihoods of each item's choices, in nats.
    """

    by_category: Mapping[str, Tally]
    log_likelihoods: tuple[tuple[float, ...], ...]


def _tally(items: Sequence[Item], sums: Sequence[tuple[float, ...]]) -> Tally:
    """Count right answers. If several choices have the largest sum, the first one is chosen."""
    correct = correct_norm = 0
    for item, row in zip(items, sums, strict=True):
        lengths = [len(choice.encode()) for choice in item.choices]
        correct += int(np.argmax(row)) == item.answer
        correct_norm += int(np.argmax(np.array(row) / lengths)) == item.answer
    chance = sum(1 / len(item.choices) for item in items) / len(items)
    return Tally(items=len(items), correct=correct, correct_norm=correct_norm, chance=chance)


def _score(target: Target, state: State, limits: Limits, entry: EncodedItem, vocab_limit: int) -> tuple[float, ...]:
    """Return the log-likelihood of each choice. The context runs once and serves all choices."""
    state.truncate(0)
    first = next_log_probs(target, state, limits, entry.context, vocab_limit=vocab_limit)
    sums: F64 = first[[ids[0] for ids in entry.choices]]
    check_finite(sums)
    for at, ids in enumerate(entry.choices):
        if len(ids) > 1:
            kept = state.truncate(len(entry.context))
            if kept < len(entry.context):
                next_log_probs(target, state, limits, entry.context[kept:], vocab_limit=vocab_limit)
            sums[at] += log_likelihoods(target, state, limits, ids[:-1], ids[1:], vocab_limit=vocab_limit).sum()
    return tuple(sums.tolist())


def score_encoded(
    target: Target,
    limits: Limits,
    encoded: Sequence[EncodedItem],
    *,
    vocab_limit: int,
    progress: Progress = silent,
) -> ChoiceScore:
    """Score items that ``encode_items`` encoded. See ``score_items``."""
    check_lengths(encoded, limits.positions)
    state = target.open(limits)
    sums = []
    try:
        for entry in encoded:
            sums.append(_score(target, state, limits, entry, vocab_limit))
            progress("questions", len(sums), len(encoded))
    finally:
        state.close()
    items = [entry.item for entry in encoded]
    by_category = {}
    for name in dict.fromkeys(item.category for item in items if item.category is not None):
        members = [at for at, item in enumerate(items) if item.category == name]
        by_category[name] = _tally([items[at] for at in members], [sums[at] for at in members])
    return ChoiceScore(**asdict(_tally(items, sums)), by_category=by_category, log_likelihoods=tuple(sums))


def score_items(
    target: Target,
    limits: Limits,
    tokenizer: Tokenizer,
    items: Sequence[Item],
    *,
    bos: int | None,
    vocab_limit: int,
    progress: Progress = silent,
) -> ChoiceScore:
    """Compute the log-likelihood of every choice and count the right answers.

    Args:
        target: runs the passes.
        limits: passes have at most ``limits.nodes`` rows; questions take at most ``limits.positions`` rows.
        tokenizer: the model's tokenizer.
        items: at least one question.
        bos: id with which every text begins, if the model has one.
        vocab_limit: number of the tokenizer's ids; larger ids are padding and get no probability.
        progress: called after each question.

    Raises:
        UsageError, BundleError: ``encode_items`` raised it.
        EdgedecError: a question is too long for the context.
        DeviceError: the target returned NaN or infinity.
    """
    encoded = encode_items(tokenizer, items, bos=bos, vocab_limit=vocab_limit)
    return score_encoded(target, limits, encoded, vocab_limit=vocab_limit, progress=progress)
