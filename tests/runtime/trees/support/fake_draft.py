"""Provide drafts with known distributions, and slow, obvious trees to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np

from edgedec.runtime.protocols import I32, Limits, Outcome, Sparse, TokenTree

TEXT = np.array([7, 3, 0], np.int32)
NO_GUESS: Mapping[int, float] = {}


def sparse(guess: Mapping[int, float]) -> Sparse:
    return Sparse(ids=np.array(list(guess), np.int32), probs=np.array(list(guess.values()), np.float32))


class FakeDraft:
    """Return ``guess(tokens of the path, the text's last one included)`` after a path, and check its arguments."""

    def __init__(self, guess: Callable[[tuple[int, ...]], Mapping[int, float]], limits: Limits) -> None:
        self.guess, self.limits = guess, limits
        self.asked: list[list[int]] = []
        self.before: TokenTree | None = None

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        assert 1 <= len(tree.tokens) <= self.limits.nodes
        assert nodes.dtype == tree.tokens.dtype == tree.parents.dtype == np.int32
        assert 1 <= len(set(nodes.tolist())) == len(nodes)
        assert 0 <= nodes.min() <= nodes.max() < len(tree.tokens)
        if self.before is not None and len(tree.tokens) > 1:  # the tree of a round only grows
            count = len(self.before.tokens)
            assert np.array_equal(tree.tokens[:count], self.before.tokens)
            assert np.array_equal(tree.parents[:count], self.before.parents)
        self.before = TokenTree(tokens=tree.tokens.copy(), parents=tree.parents.copy(), draft={})
        self.asked.append(nodes.tolist())
        return [sparse(self.guess(path_of(tree, node))) for node in nodes.tolist()]

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        return None


class FakeCost:
    """Return seconds by number of nodes."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.by_nodes = seconds

    def seconds(self, nodes: int, past: int) -> float:
        return self.by_nodes[nodes - 1]


def path_of(tree: TokenTree, node: int) -> tuple[int, ...]:
    path = []
    while node >= 0:
        path.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return tuple(path[::-1])


def paths_of(tree: TokenTree) -> set[tuple[int, ...]]:
    paths = [path_of(tree, node) for node in range(len(tree.tokens))]
    assert len(set(paths)) == len(paths), "two siblings have one token"
    return set(paths)


def table(seed: int, vocab: int, *, certain: bool = False) -> Callable[[tuple[int, ...]], dict[int, float]]:
    """Return a random distribution after every path, the same at every call."""

    def guess(path: tuple[int, ...]) -> dict[int, float]:
        rng = np.random.default_rng([seed, *path])
        probs = np.ones(1) if certain else rng.dirichlet(np.full(vocab, 0.5))
        ids = rng.permutation(vocab)[: len(probs)]
        return {int(token): float(np.float32(prob)) for token, prob in zip(ids, probs, strict=True) if prob > 1e-6}

    return guess


def best_paths(
    guess: Callable[[tuple[int, ...]], Mapping[int, float]], nodes: int, depth: int, vocab: int, factor: Sequence[float]
) -> list[tuple[float, tuple[int, ...]]]:
    """Return the ``nodes`` paths with the largest products, the root's among them; the best first."""
    root: tuple[int, ...] = (int(TEXT[-1]),)
    every = [(1.0, root)]
    for length in range(1, depth + 1):
        for tail in product(range(vocab), repeat=length):
            path, value = root, 1.0
            for at, token in enumerate(tail):
                value *= min(1.0, factor[at] * guess(path).get(token, 0.0))
                path = (*path, token)
            if value > 0:
                every.append((value, path))
    return sorted(every, key=lambda entry: (-entry[0], len(entry[1])))[:nodes]
