"""Provide the speculation benchmark's model, the embedded one padded to BitNet b1.58 0.73B's shape, and its prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.support.prompts import KINDS, LOOPS_FROM, Prompt, prepare, repeated_share
from edgedec.demo.padded import padded_bundle
from edgedec.progress import Progress, silent
from edgedec.runtime.protocols import I32
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session

__all__ = ["PromptChoice", "PromptTask", "choose", "padded_bundle"]

SHORTEST = 0.5  # least length of a text as a share of the requested tokens; shorter texts are too short to measure


@dataclass(frozen=True, kw_only=True)
class PromptTask:
    """A prompt int32 [n], and the ids that the embedded model writes after it."""

    kind: str
    source: str
    ids: I32
    expected: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PromptChoice:
    """Chosen prompts, and the numbers by kind of prompts that were tried, and left out as looping or short."""

    tasks: Sequence[PromptTask]
    tried: dict[str, int]
    looping: dict[str, int]
    short: dict[str, int]


def choose(
    small: Session, prompts: Sequence[Prompt], per_kind: int, tokens: int, progress: Progress = silent
) -> PromptChoice:
    """Choose the first ``per_kind`` prompts of each kind whose texts by the small model neither end early nor loop.

    The padded model writes the same texts, so trying prompts with the small model is cheap.

    Raises:
        UsageError: the context has no room for so many tokens.
    """
    tasks: list[PromptTask] = []
    tried, looping, short = (dict.fromkeys(KINDS, 0) for _ in range(3))
    for prompt in prompts:
        kind = prompt.kind
        if tried[kind] - looping[kind] - short[kind] == per_kind:
            continue
        tried[kind] += 1
        ids = prepare(small, prompt, tokens)
        answer = small.generate(ids, n_predict=tokens, sampling=SamplingConfig(temperature=0))
        if len(answer.tokens) < SHORTEST * tokens:
            short[kind] += 1
        elif repeated_share(answer.text) > LOOPS_FROM:
            looping[kind] += 1
        else:
            tasks.append(PromptTask(kind=kind, source=prompt.source, ids=ids, expected=tuple(answer.tokens)))
        progress(f"{kind} {prompt.source}", len(tasks), per_kind * len(KINDS))
    return PromptChoice(tasks=tasks, tried=tried, looping=looping, short=short)
