"""A drafter that runs a second, smaller model with the same tokenizer, from the bundle that ``-md/--model-draft`` names.

The cache of the draft model follows the text. Rows that agree with the text stay, and the other tokens run again, in chunks.
Only the requested nodes of a tree run, and those of their ancestors that the cache does not have, so that a chain costs one
row per call. Rows of the last call are committed if the text continues with their tokens. Therefore the draft does not need
``observe``, and a guess depends on the text and the path alone.

A draft model with recurrent states cannot go back over a refused guess. So it keeps a snapshot of them after the text,
before the first row of a guess is committed, and another one at the end of the last chunk that it read, where other texts
often begin to differ. After a refusal the rows behind the snapshot run again, in the pass that is needed anyway.

Source: draft models, 2211.17192; token trees in one pass, 2305.09781. The management of the cache is derived here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError, UsageError
from edgedec.families import context_size
from edgedec.memory.plan import MemoryUse
from edgedec.runtime.capabilities import CompiledParts, FilingDrafter, SnapshotState
from edgedec.runtime.drafters._text import NOTHING, OBJECT_BYTES
from edgedec.runtime.drafting import BatchedDraft
from edgedec.runtime.loop.drafts import DraftHandle
from edgedec.runtime.loop.model import ModelHandle, model_handle
from edgedec.runtime.model_graph import is_recurrent
from edgedec.runtime.protocols import (
    F32,
    I32,
    Bytes,
    CostModel,
    Drafting,
    DraftPass,
    Limits,
    Outcome,
    Pass,
    PassResult,
    Sparse,
    Target,
    TargetInfo,
    TokenTree,
)
from edgedec.runtime.row_recipe import CAUSAL
from edgedec.runtime.run_sizes import LEAST_DRAFT_BITS, recurrent_slots
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import load_target, target_module
from edgedec.runtime.targets._footprint import ONCE, RUNTIME
from edgedec.runtime.visibility import tree as tree_visibility

__all__ = ["TOP", "create"]

TOP = 16  # tokens of a distribution, the likeliest ones; a tree never needs more children
_FOLDS, _WIDE = 16, 1 << 13  # layers of a folded row of logits; width of a row from which folding saves two thirds
_FAR = 1 << 30  # a depth greater than that of any tree
_SMALL_BYTES = 32 << 20  # size of the weights below which a draft runs on one thread
_NODE_BYTES = 512  # bytes of the Python objects for a node of a tree
_SNAPSHOTS = 2  # snapshots of the recurrent states of a text: after it, and after the last chunk that was read


class _ModelDraft(BatchedDraft, CompiledParts[DraftHandle]):
    """A draft model with a cache for one text.

    It makes no guess after an id that the tokenizer does not have (prompt embeddings, padding of the vocabulary), nor at or
    beyond the end of the draft's context, and it never guesses such ids.

    Parameters:
        target: runs the draft model.
        limits: limits of the draft model; ``positions`` has room for a text and a tree.
        end: number of positions at which guesses may be made.
        ids: number of ids that both models and the tokenizer have.
        name: name of the draft, for messages.
        small: True if its passes are so short that several texts need not share them.
    """

    def __init__(self, target: Target, limits: Limits, *, end: int, ids: int, name: str, small: bool) -> None:
        self._target, self._limits, self._end, self._ids, self._name = target, limits, end, ids, name
        self._state = target.open(limits)
        self._held = np.zeros(limits.positions, np.int32)  # tokens of the state's committed rows
        self._count = np.arange(limits.positions, dtype=np.int32)
        # Rows of the last pass that are not committed, by (row of the parent in that pass, or -1; token).
        self._loose: dict[tuple[int, int], int] = {}
        # Lengths at which the draft keeps a snapshot of recurrent states: of the text, and of the last chunk that was read.
        self._text_kept = self._chunk_kept = 0
        self._handle = model_handle(
            *(target, self._state, self._held),
            end=end,
            ids=ids,
            limits=limits,
            alone=not small,
        )

    @property
    def compiled(self) -> ModelHandle | None:
        """The draft in the library."""
        return self._handle

    def expanding(self, text: I32, tree: TokenTree, nodes: I32) -> Drafting[list[Sparse]]:
        """Return the distribution after each node, renormalized over its 16 likeliest tokens; empty without a guess.

        Raises:
            DeviceError: the draft computed NaN or infinity.
        """
        tokens, parents, requested = tree.tokens.tolist(), tree.parents.tolist(), nodes.tolist()
        past = len(text) - 1
        depths = self._depths(tokens, parents)
        deepest = min(self._limits.depth, self._end - past)
        answered = [node for node in requested if depths[node] < deepest]
        if not answered:
            return [NOTHING] * len(requested)
        order = _with_ancestors(parents, answered)
        place = {node: at for at, node in enumerate(order)}
        above = [place.get(parents[node], -1) for node in order]
        lead = min(_stem(above), place[min(answered)])  # leading nodes, above all others, whose logits are not needed
        kept = self._keep(text[: past + min(lead, 1)], [tokens[node] for node in order[1:lead]])
        if kept <= past and not self._has_ids(text[kept:]):
            return [NOTHING] * len(requested)
        kept = yield from self._catch_up(text[:past], kept, len(order))

        before = past - kept  # rows of the text in the pass; negative: the cache holds this many rows of the tree
        run = order[max(0, -before) :]
        ids = [*text[kept:past].tolist(), *(tokens[node] for node in run)]
        parent_rows = [*range(-1, before - 1), *(max(-1, row + before) for row in above[max(0, -before) :])]
        is_chain = _stem(parent_rows) == len(parent_rows)
        result = yield from self._run(
            Pass(
                ids=np.array(ids, np.int32),
                positions=np.array([*range(kept, past), *(past + depths[node] for node in run)], np.int32),
                visible=None if is_chain else tree_visibility(np.array(parent_rows, np.int32)),
                logits=np.array([place[node] + before for node in answered], np.int32),
            )
        )
        self._loose = {key: row for row, key in enumerate(zip(parent_rows, ids, strict=True))}
        rows = iter(result.logits)
        return [self._guess(next(rows)) if depths[node] < deepest else NOTHING for node in requested]

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        """Do nothing: the next text shows which guesses were accepted."""
        return None

    def reading(self, text: I32, rows: int) -> Drafting[bool]:
        """Run one pass of at most ``rows`` rows of ``text`` [t]. Return True, without a pass, if the rest fits into one."""
        past = len(text) - 1
        if past >= self._end:
            return True
        kept = self._keep(text[:past], [])
        rows = min(rows, self._limits.nodes)
        if past - kept < rows or not self._has_ids(text[kept:]):
            return True
        yield from self._read(text[: kept + rows], kept)
        return past - kept - rows < rows

    def next_logits(self, text: I32) -> Drafting[F32 | None]:
        """Return the logits of the token after ``text`` [t], float32 [ids]; None where ``expand`` makes no guess.

        The array may be the draft model's own memory, which its next pass overwrites.

        Raises:
            DeviceError: the draft computed NaN or infinity.
        """
        past = len(text) - 1
        if past >= self._end:
            return None
        kept = self._keep(text[:past], [])
        if not self._has_ids(text[kept:]):
            return None
        kept = yield from self._catch_up(text[:past], kept, 1)
        result = yield from self._run(Pass(ids=text[kept:], positions=self._count[kept : len(text)]))
        self._loose = {(row - 1, token): row for row, token in enumerate(text[kept:].tolist())}
        row = result.logits[0, : self._ids]
        self._check(row.max().item())  # NaN, if there is one
        return row

    def _depths(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """Return the depth of each node; ``_FAR`` or more for nodes whose token the draft lacks, and below them."""
        depths, ids = [0], self._ids
        for node in range(1, len(tokens)):
            depths.append(depths[parents[node]] + 1 if 0 <= tokens[node] < ids else _FAR)
        return depths

    def _has_ids(self, text: I32) -> bool:
        """Return whether the draft has all ids of ``text``."""
        return bool(text.min() >= 0 and text.max() < self._ids)

    def _keep(self, text: I32, path: Sequence[int]) -> int:
        """Make the cache the longest prefix of ``text`` and ``path`` that needs no pass, and return its length."""
        if self._handle is not None and self._handle.runs:
            self._loose, self._handle.runs = {}, False
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
            self._loose = {}
            if self._handle is not None:
                self._handle.forget()
            keep = self._state.truncate(keep)
            self._text_kept, self._chunk_kept = min(self._text_kept, keep), min(self._chunk_kept, keep)
            return keep
        rows: list[int] = []
        row = -1
        for token in [*text[keep : keep + len(self._loose)].tolist(), *path[max(0, keep - len(text)) :]]:
            row = self._loose.get((row, token), -1)
            if row < 0:
                break
            self._held[keep + len(rows)] = token
            rows.append(row)
        if rows and isinstance(self._state, SnapshotState):
            if keep < len(text):
                rows = rows[: len(text) - keep]  # no guess before there is a snapshot of the text
            elif keep == len(text) != self._chunk_kept:
                self._state.snapshot(instead_of=self._text_kept)
                self._text_kept = keep
        if rows:
            self._state.commit(np.array(rows, np.int32))
            self._loose = {}
        return keep + len(rows)

    def _catch_up(self, text: I32, kept: int, more: int) -> Drafting[int]:
        """Run rows of the text until the rest and ``more`` rows fit into one pass. Return the number of committed rows."""
        while kept < len(text) and len(text) - kept + more > self._limits.nodes:
            yield from self._read(text, kept)
            kept = self._state.length
        return kept

    def _read(self, text: I32, kept: int) -> Drafting[None]:
        """Run the rows of the text that fit into a pass and commit them after the ``kept`` rows of the cache."""
        work = CAUSAL.rows_pass(text, kept, self._limits.nodes)
        yield from self._run(work)
        self._state.commit(self._count[: len(work.ids)])
        self._held[kept : kept + len(work.ids)] = work.ids
        if isinstance(self._state, SnapshotState):
            self._state.snapshot(instead_of=self._chunk_kept)
            self._chunk_kept = self._state.length

    def _run(self, work: Pass) -> Drafting[PassResult]:
        self._loose = {}
        if self._handle is not None:
            self._handle.forget()
        return (yield DraftPass(self._target, self._state, work))

    def _guess(self, row: F32) -> Sparse:
        """Return the distribution of a row of logits [vocab]. It holds no reference to the row."""
        row = row[: self._ids]
        ids = _largest(row, min(TOP, len(row)))
        ids.sort()  # with the stable sort below, equally likely tokens are in ascending order
        ids = ids[(-row[ids]).argsort(kind="stable")]
        scores = row[ids]
        most, least = scores.item(0), scores.item(-1)  # a NaN is sorted to the end
        self._check(least if math.isnan(least) else most)
        probs: F32 = np.exp(scores - most)
        probs /= probs.sum()
        if not probs.item(-1):
            ids, probs = ids[probs > 0], probs[probs > 0]
        return Sparse(ids=ids.astype(np.int32), probs=probs, raw=True)

    def _check(self, logit: float) -> None:
        """Refuse a largest logit that is no number."""
        if not math.isfinite(logit):
            raise DeviceError(
                f"the draft model {self._name} computed a logit that is {logit}; run `edgedec doctor`, or try another "
                "--spec-type"
            )


def _with_ancestors(parents: Sequence[int], nodes: Sequence[int]) -> list[int]:
    """Return the nodes and all their ancestors in ascending order."""
    result = {-1}
    for node in nodes:
        while node not in result:
            result.add(node)
            node = parents[node]
    return sorted(result)[1:]


def _stem(above: list[int]) -> int:
    """Return the length of the chain at the beginning whose rows are ancestors of all rows after it."""
    if above == list(range(-1, len(above) - 1)):
        return len(above)
    return min(row + 1 for at, row in enumerate(above) if row != at - 1)


def _largest(row: F32, count: int) -> NDArray[np.int64]:
    """Return the indices of the ``count`` largest values of ``row`` [n], n >= count, unordered. NaN counts as largest.

    A wide row is folded into layers. The ``count`` columns with the largest maxima contain all results, because for each
    value elsewhere there are ``count`` larger ones.
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


class _ModelDrafter(FilingDrafter):
    """A drafter that loads the weights in the first ``open``, and again only for different limits."""

    taps: tuple[str, ...] = ()

    def __init__(self, bundle: Bundle, *, threads: int, device: str, kv_bits: int | None) -> None:
        # A small draft finishes before a second thread has taken its part.
        self._small = device == "cpu" and sum(tensor.nbytes for tensor in bundle.tensors.values()) < _SMALL_BYTES
        self._bundle, self._threads, self._device = bundle, 1 if self._small else threads, device
        self._kv_bits = _fewer_bits(bundle, device, kv_bits)
        self._loaded: tuple[TargetRequest, Target] | None = None

    def footprint(self, limits: Limits) -> Bytes:
        """Return the bytes of the draft model and of the text; what a process takes only once is no item of the draft."""
        own = self._own(limits)
        items = target_module(self._device).footprint(self._bundle, self._request(limits))
        return {
            **{f"draft_{name}": nbytes for name, nbytes in items.items() if name not in ONCE},
            # It is that of the target, if that needs it, too.
            **({RUNTIME: items[RUNTIME]} if RUNTIME in items else {}),
            "draft_text": 9 * own.positions,  # tokens, positions, and the result of their comparison
            "draft_top": 8 * self._bundle.tokens.size,  # indices into a row of logits
            "draft_objects": (OBJECT_BYTES + limits.nodes * (_NODE_BYTES + 2 * limits.nodes)),
        }

    def memories(self, limits: Limits) -> tuple[MemoryUse, ...]:
        """Return the use of a disk by a file of the draft model's values, if its policy lets them lie in one."""
        return target_module(self._device).memories(self._bundle, self._request(limits))

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> _ModelDraft:
        """Load the draft model, if it is not loaded for these limits, and return the draft.

        Raises:
            UsageError: the target has a different tokenizer.
            DeviceError, UnsupportedError: ``load_target`` raised it.
        """
        bundle = self._bundle
        if bundle.tokenizer_hash != target.tokenizer_hash:
            raise UsageError(
                f"the draft model {bundle.path} has the tokenizer {bundle.tokenizer_hash[:12]}, but the target has "
                f"{target.tokenizer_hash[:12]}, so that their token ids have different meanings; "
                "give -md/--model-draft a bundle with the target's tokenizer, or try --spec-type ngram"
            )
        own, request = self._own(limits), self._request(limits)
        if self._loaded is None or self._loaded[0] != request:
            self._loaded = None  # free the old weights before the new ones are loaded
            self._loaded = request, load_target(bundle, request)
        return _ModelDraft(
            self._loaded[1],
            own,
            end=own.positions - own.nodes,
            ids=min(bundle.tokens.size, target.vocab),
            name=str(bundle.path),
            small=self._small,
        )

    def _request(self, limits: Limits) -> TargetRequest:
        """Return the request for the draft model. A target that streams weights has not all of them in memory to lend."""
        return TargetRequest(
            limits=self._own(limits),
            device=self._device,
            threads=self._threads,
            kv_bits=self._kv_bits,
            lent=self._bundle.resident and not limits.weight_bytes,
        )

    def _own(self, limits: Limits) -> Limits:
        """Return the draft model's limits: the shorter of the two contexts, room for a tree after it, and all weights.

        If it has recurrent states, there are snapshots for as many texts as may be written at a time.
        """
        end = min(limits.positions, context_size(self._bundle.config))
        own = replace(limits, positions=end + limits.nodes, weight_bytes=0, snapshots=0)
        return replace(own, snapshots=_SNAPSHOTS * recurrent_slots(own)) if is_recurrent(self._bundle) else own


def _fewer_bits(bundle: Bundle, device: str, kv_bits: int | None) -> int | None:
    """Return the bits of the draft's keys and values: the target's if the device has fewer than its default; else None.

    They are at least 8. With 4, a small draft model's guesses are right less often, which costs more than they save.
    """
    choices = target_module(device).kv_choices(device, bundle)
    return max(kv_bits, LEAST_DRAFT_BITS) if kv_bits in choices and kv_bits < choices[0] else None


def create(
    draft: Bundle | None = None, *, threads: int = 0, device: str = "cpu", kv_bits: int | None = None
) -> _ModelDrafter:
    """Return the drafter (entry point of the plug-in).

    Parameters:
        draft: the bundle of the draft model.
        threads: number of CPU threads; 0 leaves it to the target that runs the draft model.
        device: device of the draft model, as a value of ``--device``.
        kv_bits: bits of the target's keys and values, see ``create_drafter``.

    Raises:
        UsageError: ``draft`` is None, or a head whose passes need features beside their ids.
    """
    if draft is None:
        raise UsageError(
            "--spec-type model needs a second, smaller bundle with the same tokenizer; "
            "name it with -md/--model-draft, or try --spec-type ngram"
        )
    if draft.needs_features:
        raise UsageError(
            f"the draft model {draft.path} needs features beside ids, which --spec-type model does not compute; give a "
            "drafter that computes them, or another -md"
        )
    return _ModelDrafter(draft, threads=threads, device=device, kv_bits=kv_bits)
