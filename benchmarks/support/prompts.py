"""Provide prompts of six kinds for the benchmarks, from ../shared/data/prompts if it exists, or from edgedec's own files.

The embedded model writes children's stories and knows nothing else. If a prompt is code or an article, only the *input* is
of another kind, and the answer is a story or an invented answer. Two consequences matter for the figures:

- Many answers loop, which ``repeated_share`` measures. Benchmarks leave out texts above ``LOOPS_FROM`` and report their
  number.
- The model does not copy from a text in the prompt. After a held-out story and the beginning of the same story again, 13 %
  of the 4-token sequences of its answers were in the prompt, and after "Summarize: ARTICLE" none. It does repeat its own
  stories. A ``copying`` prompt therefore holds a story that the model wrote, and then the first quarter of it: 85 % of the
  continuation's 4-token sequences are in the prompt (``copied_share``; measured on 20 texts of 128 tokens). This is the
  case for which prompt lookup is made, revising or quoting one's own text. It does not show that the model can summarize.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import edgedec
from edgedec import demo
from edgedec.environment import SHARED_DATA
from edgedec.errors import UsageError
from edgedec.quantize.demo_pair.world import repeated_share
from edgedec.runtime.measure.choices import read_items
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session

__all__ = [
    "KINDS",
    "LOOPS_FROM",
    "Prompt",
    "copied_share",
    "cut",
    "prepare",
    "read_prompts",
    "repeated_share",
    "retelling",
    "shared_prompts",
    "spread",
]

_BEGUN_AGAIN = 0.25  # share of a story that a prompt repeats

I32 = NDArray[np.int32]
Item = TypeVar("Item")
Sourced = tuple[str, tuple[str, ...]]  # (source, turns)

KINDS = ("story", "question", "copying", "code", "multi-turn", "summary")
LOOPS_FROM = 0.2  # share of repeated 4-word sequences from which a text counts as looping

_OPENING_WORDS = 8
_CODE_CHARACTERS = 600  # characters of a source file of edgedec in a prompt
_ANSWER_TOKENS = 96  # tokens of an answer in the earlier turns of a conversation


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt. ``turns`` are the user's messages, mostly one; ``source`` names the file and the entry."""

    kind: str
    source: str
    turns: tuple[str, ...]


def retelling(story: str, share: float = _BEGUN_AGAIN) -> str:
    """Return a prompt with a story and its beginning again, so that the continuation copies the story.

    Args:
        share: share of the story's words that the prompt repeats.
    """
    words = story.split(" ")
    return f"{story}\n\n{' '.join(words[: max(1, int(share * len(words)))])}"


def shared_prompts() -> Path | None:
    """Return $EDGEDEC_SHARED_DATA/prompts or ../shared/data/prompts beside the checkout, or None if there is none."""
    named = SHARED_DATA.value()
    folder = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "data"
    return folder / "prompts" if (folder / "prompts").is_dir() else None


def read_prompts(data: Path | None, per_kind: int) -> list[Prompt]:
    """Return up to ``per_kind`` prompts of each of ``KINDS``, spread over their files, the same in every run.

    Raises:
        UsageError: a file in ``data`` is damaged; the message names the file and the line.
    """
    sources = {
        "story": _openings(),
        "copying": _openings(),  # ``prepare`` lets the model write the rest
        "question": _questions(data),
        "code": _code(data),
        "multi-turn": _conversations(data),
        "summary": _summaries(data),
    }
    return [
        Prompt(kind=kind, source=source, turns=turns)
        for kind in KINDS
        for source, turns in spread(sources[kind], per_kind)
    ]


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """Return ``count`` of the items at even distances, or all of them."""
    if count >= len(items):
        return list(items)
    return [items[at * len(items) // count] for at in range(count)]


def _rows(data: Path | None, name: str, *needed: str) -> list[tuple[str, dict[str, Any]]]:
    """Return (source, entry) of each line of a JSON Lines file; empty if the file does not exist."""
    if data is None or not (data / name).is_file():
        return []
    rows = []
    try:
        with gzip.open(data / name) if name.endswith(".gz") else (data / name).open("rb") as file:
            for number, line in enumerate(file, 1):
                entry = json.loads(line)
                if not isinstance(entry, dict) or not set(needed) <= set(entry):
                    raise ValueError(f"line {number} must have {', '.join(needed)}")
                rows.append((f"{name}:{number}", entry))
    except (ValueError, EOFError, OSError) as error:
        raise UsageError(f"{data / name}: {error}, after line {len(rows)}; copy the file again") from error
    return rows


def _stories() -> list[str]:
    return demo.HELD_OUT.read_text("utf-8").strip().split("\n\n")


def _openings() -> list[Sourced]:
    starts = [" ".join(story.split(" ")[:_OPENING_WORDS]) for story in _stories()]
    return [(f"held_out.txt:{number}", (start,)) for number, start in enumerate(starts, 1)]


def _spec_bench(data: Path | None, category: str) -> list[Sourced]:
    """Return the first turns of a category, each with a line end, without which the model often ends immediately."""
    rows = _rows(data, "spec_bench_question.jsonl", "turns", "category")
    return [(source, (f"{row['turns'][0]}\n",)) for source, row in rows if row["category"] == category]


def _questions(data: Path | None) -> list[Sourced]:
    questions, rows = _spec_bench(data, "qa"), _rows(data, "gsm8k_train.jsonl", "question")
    sums: list[Sourced] = [(source, (f"{row['question']}\n",)) for source, row in rows]
    if questions or sums:  # an equal number of both, so that a sample of them has equal parts
        return questions + spread(sums, len(questions) or len(sums))
    facts = [item for item in read_items(demo.CHOICES) if item.category == "fact"]
    texts = [(item.id, item.question.removeprefix("Q: ").removesuffix(" A:")) for item in facts]
    return [(f"choices.jsonl:{name}", (f"{text}\n",)) for name, text in texts]


def _code(data: Path | None) -> list[Sourced]:
    tasks: list[Sourced] = [(source, (row["prompt"],)) for source, row in _rows(data, "HumanEval.jsonl.gz", "prompt")]
    own = sorted(Path(edgedec.__file__).parent.glob("*.py"))
    texts = [(file.name, file.read_text("utf-8")[:_CODE_CHARACTERS]) for file in own]
    return tasks or [(name, (text,)) for name, text in texts if len(text) == _CODE_CHARACTERS]


def _conversations(data: Path | None) -> list[Sourced]:
    talks = [(source, tuple(row["turns"])) for source, row in _rows(data, "mt_bench_question.jsonl", "turns")]
    pairs = pairwise(_openings())
    return talks or [(f"{source} and the next", first + second) for (source, first), (_, second) in pairs]


def _summaries(data: Path | None) -> list[Sourced]:
    stories = enumerate(_stories(), 1)
    return _spec_bench(data, "summarization") or [
        (f"held_out.txt:{number}", (f"Summarize: {story}\n",)) for number, story in stories
    ]


def cut(ids: I32, room: int, bos: int | None) -> I32:
    """Return the last ``room`` of ids int32 [n]; a BOS at the start is kept.

    Raises:
        UsageError: there is no room for a token after the BOS.
    """
    if room < 2:
        raise UsageError(f"a prompt needs room for 2 tokens, not {room}; raise --ctx-size or ask for fewer tokens")
    if len(ids) <= room:
        return ids
    if ids[0] == bos:
        return np.concatenate([ids[:1], ids[len(ids) - room + 1 :]])
    return ids[len(ids) - room :]


def prepare(session: Session, prompt: Prompt, new_tokens: int) -> I32:
    """Return the prompt's ids, shortened so that ``new_tokens`` fit into the context after them.

    The session writes the answers to earlier turns, and the stories to be repeated, greedily. A padded model would write
    the same text, so the small model should be used.

    Raises:
        UsageError: the context has no room for so many new tokens.
    """
    bos, room = session.bundle.tokens.bos, session.run.limits.positions - new_tokens
    text = prompt.turns[0]
    if prompt.kind == "copying":
        text = retelling(text + _continued(session, text, room, room // 2))
    for turn in prompt.turns[1:]:
        text += "\n"
        text += f"{_continued(session, text, room, _ANSWER_TOKENS).strip()}\n\n{turn}\n"
    return cut(session.tokenizer.encode(text), room, bos)


def _continued(session: Session, text: str, room: int, tokens: int) -> str:
    tokens = max(1, min(tokens, room - 2))
    ids = cut(session.tokenizer.encode(text), max(2, room - tokens), session.bundle.tokens.bos)
    return session.generate(ids, n_predict=tokens, sampling=SamplingConfig(temperature=0)).text


def copied_share(ids: Sequence[int] | I32, prompt: Sequence[int] | I32) -> float:
    """Return the share, 0 to 1, of the 4-token sequences of ``ids`` that occur in ``prompt``."""
    grams, known = _four_grams(ids), set(_four_grams(prompt))
    return sum(gram in known for gram in grams) / len(grams) if grams else 0.0


def _four_grams(ids: Sequence[int] | I32) -> list[tuple[int, ...]]:
    plain = [int(i) for i in ids]
    return list(zip(plain, plain[1:], plain[2:], plain[3:], strict=False))
