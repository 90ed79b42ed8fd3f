"""Provide what the drafters' tests share: a draft, its guesses, and speculation on a known answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from edgedec.plugins import load
from edgedec.runtime.protocols import F32, Draft, Limits, Outcome, TargetInfo, TokenTree
from edgedec.runtime.rounds.cost import ObservedCost

VOCAB = 50
LIMITS = Limits(nodes=16, depth=8, positions=128)


def info(vocab: int = VOCAB) -> TargetInfo:
    return TargetInfo(
        vocab=vocab,
        tokenizer_hash="0" * 64,
        positions=4096,
        taps=(),
        masks="any",
        batch_invariant=True,
    )


def open_draft(name: str, limits: Limits = LIMITS, vocab: int = VOCAB) -> Draft:
    draft: Draft = load("edgedec.runtime.drafters", name).create().open(info(vocab), limits, ObservedCost())
    return draft


def chain(text: list[int], path: list[int]) -> TokenTree:
    """Return the tree whose only path is ``path``."""
    tokens = np.array([text[-1], *path], np.int32)
    return TokenTree(tokens=tokens, parents=np.arange(-1, len(path), dtype=np.int32), draft={})


def ask(draft: Draft, text: list[int], path: list[int] | None = None) -> dict[int, float]:
    """Return id -> probability after text and path."""
    tree = chain(text, path or [])
    (guess,) = draft.expand(np.array(text, np.int32), tree, np.array([len(tree.tokens) - 1], np.int32))
    return dict(zip(guess.ids.tolist(), guess.probs.tolist(), strict=True))


def run(draft: Draft, text: list[int], limits: Limits = LIMITS) -> list[int]:
    """Return the chain of likeliest guesses."""
    path: list[int] = []
    while len(path) < limits.depth and (guess := ask(draft, text, path)):
        path.append(max(guess, key=lambda token: guess[token]))
    return path


def tell(
    draft: Draft, text: list[int], path: list[int], accepted: int, token: int, taps: Mapping[str, F32] | None = None
) -> list[int]:
    """Accept the first tokens of a chain and add one; return the new text."""
    nodes = np.arange(accepted + 1, dtype=np.int32)
    draft.observe(chain(text, path), Outcome(path=nodes, next_token=token, taps=taps or {}))
    return [*text, *path[:accepted], token]


@dataclass
class Played:
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    runs: list[list[int]] = field(default_factory=list)


def play(
    draft: Draft,
    prompt: list[int],
    answer: list[int],
    limits: Limits = LIMITS,
    before: Callable[[list[int]], None] = lambda text: None,
) -> Played:
    """Speculate on a target that writes ``answer``. ``before`` is called with the text at the start of each round."""
    played, text, whole = Played(), list(prompt), [*prompt, *answer]
    while len(text) < len(whole):
        before(text)
        path = run(draft, text, limits)
        right = 0
        while right < min(len(path), len(whole) - len(text) - 1) and path[right] == whole[len(text) + right]:
            right += 1
        played.drafted += len(path)
        played.accepted += right
        played.rounds += 1
        played.runs.append(path)
        text = tell(draft, text, path, right, whole[len(text) + right])
    return played
