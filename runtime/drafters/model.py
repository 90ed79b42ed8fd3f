"""A second, smaller model with the same tokenizer guesses: the bundle that ``-md/--model-draft`` names.

Its cache follows the text. What of the cache agrees with the text at hand stays, whatever became of the guesses; the rest is
run again, in chunks. Of a tree only the nodes that are asked about run, and those above them that the cache does not
have: a chain costs one row a call. Rows of the last call that the text then takes are kept as well, so that a draft needs
no ``observe``, and a guess depends on text and path alone.

Source: draft models, 2211.17192; token trees in one pass, 2305.09781. The way the cache follows is derived here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.errors import DeviceError, UsageError
from edgedec.families import context_size
from edgedec.runtime.drafters._text import NOTHING, OBJECT_BYTES
from edgedec.runtime.protocols import (
    F32,
    I32,
    Bytes,
    CostModel,
    Limits,
    Outcome,
    Pass,
    PassResult,
    Sparse,
    Target,
    TargetInfo,
    TokenTree,
)
from edgedec.runtime.targets import open_target, target_module
from edgedec.runtime.targets._footprint import ONCE
from edgedec.runtime.visibility import tree as tree_visibility

__all__ = ["TOP", "create"]

TOP = 16  # tokens of a distribution: the likeliest, renormalized; a tree never wants more children
_FOLDS, _WIDE = 16, 1 << 13  # rows of logits this wide are searched folded, 16 layers deep: a third of the time
_FAR = 1 << 30  # deeper than any tree
_SMALL_BYTES = 32 << 20  # of weights, below which a draft runs on one thread
_NODE_BYTES = 512  # Python objects for a node of a tree


class _ModelDraft:
    """The draft model at work on one text.

    There is no guess after an id that the tokenizer does not have (prompt embeddings, padding of the vocabulary), nor
    from the end of the draft's context on. Such ids are never proposed either.

    Parameters:
        limits: the draft's own; ``positions`` has room for a text and a tree.
        end: positions that guesses may be made at.
        ids: tokens that both models and the tokenizer have.
        name: of the draft, for messages.
    """

    def __init__(self, target: Target, limits: Limits, *, end: int, ids: int, name: str) -> None:
        self._target, self._limits, self._end, self._ids, self._name = target, limits, end, ids, name
        self._state = target.open(limits)
        self._held = np.zeros(limits.positions, np.int32)  # the tokens behind the state's committed rows
        self._count = np.arange(limits.positions, dtype=np.int32)
        self._loose: dict[tuple[int, int], int] = {}  # rows of the last pass by (row before, or -1; token)

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        """The distribution after each node, renormalized over its likeliest 16 tokens; empty where there is no guess.

        Raises:
            DeviceError: the draft computed NaN or infinity.
        """
        tokens, parents, asked = tree.tokens.tolist(), tree.parents.tolist(), nodes.tolist()
        past = len(text) - 1
        depths = self._depths(tokens, parents)
        deepest = min(self._limits.depth, self._end - past)
        answered = [node for node in asked if depths[node] < deepest]
        if not answered:
            return [NOTHING] * len(asked)
        order = _with_ancestors(parents, answered)
        place = {node: at for at, node in enumerate(order)}
        above = [place.get(parents[node], -1) for node in order]
        lead = min(_stem(above), place[min(answered)])  # nodes that all hang below, and that need no answer
        kept = self._keep(text[: past + min(lead, 1)], [tokens[node] for node in order[1:lead]])
        if kept <= past and not self._readable(text[kept:]):
            return [NOTHING] * len(asked)
        kept = self._catch_up(text[:past], kept, len(order))

        before = past - kept  # rows of the pass before the tree's; negative: so many of the tree's are held
        run = order[max(0, -before) :]
        ids = [*text[kept:past].tolist(), *(tokens[node] for node in run)]
        up = [*range(-1, before - 1), *(max(-1, at + before) for at in above[max(0, -before) :])]
        result = self._submit(
            Pass(
                ids=np.array(ids, np.int32),
                positions=np.array([*range(kept, past), *(past + depths[node] for node in run)], np.int32),
                visible=None if _stem(up) == len(up) else tree_visibility(np.array(up, np.int32)),
                logits=np.array([place[node] + before for node in answered], np.int32),
            )
        )
        self._loose = {(row, token): at for at, (row, token) in enumerate(zip(up, ids, strict=True))}
        rows = iter(result.logits)
        return [self._guess(next(rows)) if depths[node] < deepest else NOTHING for node in asked]

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        """Nothing: the next text says what was accepted."""
        return None

    def _depths(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """Of each node; of one that cannot be fed, and below it, too deep."""
        depths, ids = [0], self._ids
        for node in range(1, len(tokens)):
            depths.append(depths[parents[node]] + 1 if 0 <= tokens[node] < ids else _FAR)
        return depths

    def _readable(self, text: I32) -> bool:
        return bool(text.min() >= 0 and text.max() < self._ids)

    def _keep(self, text: I32, path: Sequence[int]) -> int:
        """Make the cache a beginning of ``text`` and ``path``, the longest that needs no pass. Returns its length."""
        held = self._state.length
        keep = min(held, len(text))
        same = self._held[:keep] == text[:keep]
        if not same.all():
            keep = int(same.argmin())
        for token in path if keep == len(text) else ():
            if keep == held or self._held[keep] != token:
                break
            keep += 1
        if keep < held:
            self._state.truncate(keep)
            self._loose = {}
            return keep
        found: list[int] = []
        row = -1
        for token in [*text[keep : keep + len(self._loose)].tolist(), *path[max(0, keep - len(text)) :]]:
            row = self._loose.get((row, token), -1)
            if row < 0:
                break
            self._held[keep + len(found)] = token
            found.append(row)
        if found:
            self._state.commit(np.array(found, np.int32))
            self._loose = {}
        return keep + len(found)

    def _catch_up(self, text: I32, kept: int, more: int) -> int:
        """Run the text's rows until the rest and ``more`` fit into one pass. Returns how many are held then."""
        while kept < len(text) and len(text) - kept + more > self._limits.nodes:
            chunk = text[kept : kept + self._limits.nodes]
            self._submit(Pass(ids=chunk, positions=self._count[kept : kept + len(chunk)]))
            self._state.commit(self._count[: len(chunk)])
            self._held[kept : kept + len(chunk)] = chunk
            kept += len(chunk)
        return kept

    def _submit(self, work: Pass) -> PassResult:
        self._loose = {}
        (result,) = self._target.submit([(self._state, work)]).result()
        return result

    def _guess(self, row: F32) -> Sparse:
        """The distribution that a row of logits [vocab] says; the row is the target's, and nothing of it is kept."""
        row = row[: self._ids]
        found = _largest(row, min(TOP, len(row)))
        found.sort()  # of equally likely tokens the first comes first
        found = found[(-row[found]).argsort(kind="stable")]
        scores = row[found]
        most, least = scores.item(0), scores.item(-1)  # NaN, if there is one, is the last
        if not math.isfinite(most) or math.isnan(least):
            raise DeviceError(
                f"the draft {self._name} computed a logit that is {least if math.isnan(least) else most}; "
                "run `edgedec doctor`, or try another --spec-type"
            )
        probs: F32 = np.exp(scores - most)
        probs /= probs.sum()
        if not probs.item(-1):
            found, probs = found[probs > 0], probs[probs > 0]
        return Sparse(ids=found.astype(np.int32), probs=probs)


def _with_ancestors(parents: Sequence[int], nodes: Sequence[int]) -> list[int]:
    """The nodes and all above them, ascending."""
    found = {-1}
    for node in nodes:
        while node not in found:
            found.add(node)
            node = parents[node]
    return sorted(found)[1:]


def _stem(above: list[int]) -> int:
    """How many rows at the beginning all the others hang below, in a chain."""
    if above == list(range(-1, len(above) - 1)):
        return len(above)
    return min(row + 1 for at, row in enumerate(above) if row != at - 1)


def _largest(row: F32, count: int) -> NDArray[np.int64]:
    """The places of the largest values of ``row`` [n], n >= count, unordered; NaN counts as the largest.

    A wide row is folded into layers. The columns with the largest maxima hold all that is wanted: for a value elsewhere
    there are ``count`` larger ones.
    """
    width = len(row) // _FOLDS
    if len(row) < _WIDE or width < count:
        return row.argpartition(len(row) - count)[len(row) - count :]
    layers = row[: width * _FOLDS].reshape(_FOLDS, width)
    columns = layers.max(axis=0).argpartition(width - count)[width - count :]
    places = (columns + np.arange(0, width * _FOLDS, width)[:, None]).ravel()
    places = np.concatenate([places, np.arange(width * _FOLDS, len(row))])
    best: NDArray[np.int64] = places[row[places].argpartition(len(places) - count)[len(places) - count :]]
    return best


class _ModelDrafter:
    """The weights are loaded once, by the first ``open``, and again only for other limits."""

    taps: tuple[str, ...] = ()

    def __init__(self, bundle: Bundle, *, threads: int, device: str) -> None:
        # The target's threads and a second pool would wait for each other's cores, busily; a small draft is done before
        # a second thread is awake.
        small = device == "cpu" and sum(tensor.nbytes for tensor in bundle.tensors.values()) < _SMALL_BYTES
        self._bundle, self._threads, self._device = bundle, 1 if small else threads, device
        self._loaded: tuple[Limits, Target] | None = None

    def footprint(self, limits: Limits) -> Bytes:
        """What the draft's own target says beside the first one of the process, and the text."""
        own = self._own(limits)
        items = target_module(self._device).footprint(self._bundle, own, device=self._device, threads=self._threads)
        return {
            **{f"draft_{name}": nbytes for name, nbytes in items.items() if name not in ONCE},
            "draft_text": 9 * own.positions,  # tokens, positions, and what comparing takes
            "draft_top": 8 * self._bundle.tokens.size,  # places in a row of logits
            "draft_objects": (OBJECT_BYTES + limits.nodes * (_NODE_BYTES + 2 * limits.nodes)),
        }

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> _ModelDraft:
        """Raises:
        UsageError: the target has another tokenizer. (That a vocabulary covers its tokenizer, ``Bundle.open`` sees to.)
        DeviceError, UnsupportedError: as ``open_target``.
        """
        bundle = self._bundle
        if bundle.tokenizer_hash != target.tokenizer_hash:
            raise UsageError(
                f"the draft {bundle.path} has the tokenizer {bundle.tokenizer_hash[:12]}, the target "
                f"{target.tokenizer_hash[:12]}: to the one the other's tokens mean something else; "
                "give -md/--model-draft a bundle with the target's tokenizer, or try --spec-type ngram"
            )
        own = self._own(limits)
        if self._loaded is None or self._loaded[0] != own:
            self._loaded = None  # let the old weights go first
            loaded = open_target(bundle, device=self._device, limits=own, threads=self._threads)
            self._loaded = own, loaded
        return _ModelDraft(
            self._loaded[1],
            own,
            end=own.positions - own.nodes,
            ids=min(bundle.tokens.size, target.vocab),
            name=str(bundle.path),
        )

    def _own(self, limits: Limits) -> Limits:
        """The draft's limits: a text of the whole context, its own or the target's, and a tree behind it."""
        end = min(limits.positions, context_size(self._bundle.config))
        return replace(limits, positions=end + limits.nodes)


def create(draft: Bundle | None = None, *, threads: int = 0, device: str = "cpu") -> _ModelDrafter:
    """Plug-in entry.

    Parameters:
        draft: the bundle that drafts.
        threads: 0 leaves the number to the target that runs it.
        device: where it runs, as ``--device``.

    Raises:
        UsageError: no bundle.
    """
    if draft is None:
        raise UsageError(
            "--spec-type model drafts with a second, smaller bundle that has the same tokenizer: "
            "name it with -md/--model-draft, or try --spec-type ngram"
        )
    return _ModelDrafter(draft, threads=threads, device=device)
