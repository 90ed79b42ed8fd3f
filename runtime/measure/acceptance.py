"""The expected acceptance of a draft's guesses on text that the target writes, computed from both distributions.

At each position of the text the target's distribution p and the draft's q are those after the sampling options. A guess that
was chosen is the draft's likeliest token and is accepted with probability p[argmax q]; a guess that was drawn is accepted
with probability sum(min(p, q)). The means over all positions have no other randomness than that of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.progress import Progress, silent
from edgedec.runtime.measure.perplexity import read_logits
from edgedec.runtime.model_graph import check_main_model
from edgedec.runtime.protocols import F32, I32, Limits
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import open_target

__all__ = [
    "OPENINGS",
    "Acceptance",
    "AcceptanceTable",
    "WrittenText",
    "measure_acceptance",
    "read_texts",
    "write_texts",
]

# Prompts of the texts; each is continued by the target.
OPENINGS = (
    "Once upon a time",
    "One day",
    "It was a",
    "There was a",
    "In the morning",
    "When the sun",
    "She said",
    "The little",
)
PAST = 8  # tokens of a line before its first position that counts
MOST_TOKENS = 512  # tokens of a line that are read
TEXT_TOKENS = 128  # tokens of a text, its prompt not included, at most
_ROWS = 32  # rows of a pass


@dataclass(frozen=True, kw_only=True)
class WrittenText:
    """A text: ``ids`` int32 [n], of which the first ``prompt`` are the prompt."""

    ids: I32
    prompt: int


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Expected share of accepted guesses: of ``chosen`` and of ``drawn`` guesses."""

    chosen: float
    drawn: float


@dataclass(frozen=True, kw_only=True)
class AcceptanceTable:
    """Acceptance over ``positions`` positions.

    Members:
        floor: acceptance of a draft that does not read the text, and has the target's mean distribution everywhere.
        ceiling: acceptance of the target as its own draft.
        drafts: acceptance of each draft.
    """

    positions: int
    floor: Acceptance
    ceiling: Acceptance
    drafts: list[Acceptance]


def write_texts(
    bundle: Bundle, sampling: SamplingConfig, *, samples: int, threads: int = 0, progress: Progress = silent
) -> list[WrittenText]:
    """Return texts that the model writes: ``samples`` for each of ``OPENINGS``, the same for the same seed.

    Raises:
        UsageError: the model writes no token after any of them.
    """
    texts = []
    with Session.open(bundle.path, threads=threads, ctx_size=0) as session:
        for place, opening in enumerate(OPENINGS):
            prompt = session.encode(opening)
            for sample in range(samples):
                progress("texts", place * samples + sample, len(OPENINGS) * samples)
                answer = session.generate(prompt, n_predict=TEXT_TOKENS, sampling=sampling, sample=sample)
                if answer.tokens:
                    ids = np.concatenate([prompt, np.array(answer.tokens, np.int32)])
                    texts.append(WrittenText(ids=ids, prompt=len(prompt)))
    if not texts:
        raise UsageError(
            f"{bundle.path}: the model writes nothing after any opening, so no draft can be measured on it"
        )
    return texts


def read_texts(lines: Sequence[str], encode: Callable[[str], I32]) -> list[WrittenText]:
    """Return the lines of a text that have more than ``PAST`` tokens; their first tokens are their prompt.

    Raises:
        UsageError: no line is that long.
    """
    ids = [encode(line)[:MOST_TOKENS] for line in lines if line.strip()]
    texts = [WrittenText(ids=line, prompt=PAST) for line in ids if len(line) > PAST]
    if not texts:
        raise UsageError(f"the text has no line of more than {PAST} tokens; give a longer --text")
    return texts


def measure_acceptance(
    target: Bundle,
    drafts: Sequence[Bundle],
    texts: Sequence[WrittenText],
    sampling: SamplingConfig,
    *,
    threads: int = 0,
    progress: Progress = silent,
) -> AcceptanceTable:
    """Measure the acceptance of each draft over all positions of ``texts`` after the prompts.

    Args:
        target, drafts: bundles with one tokenizer.
        texts: texts; each has at least one token after its prompt.
        sampling: the sampling options; the temperature is above 0.
        threads: number of CPU threads; 0 leaves it to the target.
        progress: called after each text of each model.

    Raises:
        UsageError: a draft has another tokenizer, or a model needs features beside ids.
    """
    for model in (target, *drafts):
        check_main_model(model)
    for draft in drafts:
        if draft.tokenizer_hash != target.tokenizer_hash:
            raise UsageError(
                f"the draft {draft.path} has another tokenizer than {target.path}: both must be made from checkpoints with "
                "one tokenizer"
            )
    sampler, steps = Sampler(sampling, target.tokens.size), (1 + len(drafts)) * len(texts)
    written: list[tuple[NDArray[np.intp], F32]] = []  # ids with a probability, and those, at each position
    for at, row in _distributions(target, texts, sampler, threads):
        written.append((np.flatnonzero(row), row[row > 0]))
        progress("texts read", at, steps)
    results = []
    for number, draft in enumerate(drafts, 1):
        chosen, drawn = 0.0, 0.0
        rows = _distributions(draft, texts, sampler, threads)
        for (ids, probs), (at, row) in zip(written, rows, strict=True):
            chosen += float(probs[ids == row.argmax()].sum())
            drawn += float(np.minimum(probs, row[ids]).sum(dtype=np.float64))
            progress("texts read", number * len(texts) + at, steps)
        results.append(Acceptance(chosen=chosen / len(written), drawn=drawn / len(written)))
    count, mean = len(written), np.zeros(target.tokens.size)
    for ids, probs in written:
        mean[ids] += probs / count
    overlap = sum(float(np.minimum(probs, mean[ids]).sum()) for ids, probs in written)
    best = sum(float(probs.max()) for _, probs in written)
    return AcceptanceTable(
        positions=count,
        floor=Acceptance(chosen=float(mean.max()), drawn=overlap / count),
        ceiling=Acceptance(chosen=best / count, drawn=1.0),
        drafts=results,
    )


def _distributions(
    bundle: Bundle, texts: Sequence[WrittenText], sampler: Sampler, threads: int
) -> Iterator[tuple[int, F32]]:
    """Yield the index of a text and the distribution float32 [ids] of each of its tokens after the prompt."""
    limits = Limits(nodes=_ROWS, depth=0, positions=max(len(text.ids) for text in texts))
    target = open_target(bundle, limits=limits, threads=threads)
    state = target.open(limits)
    try:
        for at, text in enumerate(texts):
            state.truncate(0)
            for start, logits in read_logits(target, state, limits, text.ids[:-1], every_row=True):
                for row in range(max(0, text.prompt - 1 - start), len(logits)):
                    history = text.ids[: start + row + 1]
                    yield at, sampler.distribution(logits[row, : sampler.vocab_limit], history)
    finally:
        state.close()
