"""The decoding loop: grow a tree of guesses, run it in one pass, accept a path, commit the path.

Plain decoding is the same loop with a drafter that never guesses: the tree is a root without children, the path is the
root, and the verifier's next token is the sample. Invariant: the last token of the text is never in the cache; it is node 0
of the next pass. Between submitting a pass and waiting for its result the host may grow the next tree (``_ahead.py``).

A round is three methods of ``AutoregressiveSequence``: ``next_tree``, ``draft_ahead`` and ``accept``. The engine
(``runtime/engine``) calls them, for one sequence or for many, whose passes it submits together.

Source: speculative decoding, 2211.17192; token trees, 2305.09781.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import numpy as np

from edgedec.runtime.capabilities import CertainVerifier
from edgedec.runtime.decoders._ahead import Ahead, root_alone
from edgedec.runtime.decoders._cached import CachedDecoder, PromptSequence
from edgedec.runtime.decoders._compiled import (
    PLAIN,
    CompiledText,
    DoneRounds,
    LendingState,
    NextRounds,
    compiled_text,
    run_rounds,
)
from edgedec.runtime.decoders.adaptive import Adaptive
from edgedec.runtime.decoders.cost import CostBeside
from edgedec.runtime.decoders.rounds import RoundClock, Rounds, RoundSeconds
from edgedec.runtime.drafting import expanding, reading
from edgedec.runtime.protocols import (
    F32,
    I32,
    Draft,
    Drafter,
    Drafting,
    Limits,
    Outcome,
    Pass,
    PassResult,
    Request,
    Room,
    Target,
    Token,
    TokenSequence,
    TokenTree,
    WrittenRounds,
)
from edgedec.runtime.sampling.target_top import TOP_TAPS, top_taps
from edgedec.runtime.visibility import tree as tree_visibility

__all__ = ["AutoregressiveDecoder", "AutoregressiveSequence", "Rounds"]

_T = TypeVar("_T")
_CALIBRATED = (1, 2, 4, 16)  # numbers of rows of the passes measured before the first round, besides the largest tree's
_ROOT = np.zeros(1, np.int32)  # ``Pass.logits`` of a tree without guesses
_ROOT.setflags(write=False)
_REPEATS = 4  # measurements of each size; the fastest counts, because other processes only slow a pass down


@dataclass(kw_only=True, eq=False)
class AutoregressiveDecoder(CachedDecoder):
    """A decoder that continues one prompt at a time and keeps the cache rows of a common prefix for the next prompt.

    Members:
        drafter: makes the guesses.
        vocab_limit: number of the tokenizer's ids; larger ids pad the vocabulary.
        overlaps: grow the next tree while a pass runs; for targets that leave the host free.
        tree_nodes: nodes of the largest tree, whose pass is measured before the first round; 0: the longest chain.
        on_round: called after each round with its seconds, when ``rounds`` has them.
        price: ``cost`` beside the rows of other sequences, as drafts and policies see it; set by ``open_draft``.
    """

    drafter: Drafter
    vocab_limit: int
    overlaps: bool = False
    tree_nodes: int = 0
    on_round: Callable[[RoundSeconds], None] = lambda seconds: None
    price: CostBeside = field(init=False, repr=False)
    _draft: Draft | None = None  # kept from request to request, as the measurements are
    _adaptive: Adaptive | None = None

    @property
    def speculating(self) -> bool:
        """True while ``Adaptive`` has speculation switched on."""
        return self._adaptive is not None and self._adaptive.on

    def open_draft(self, limits: Limits) -> Draft:
        """Return the draft. The first call opens it, which may load a draft model, and measures passes."""
        limits = _with_possible_depth(limits)
        if self._draft is None:
            self.price = CostBeside(self.cost)
            self._draft = self.drafter.open(self.target.info, limits, self.price)
            if limits.depth and not self.cost.seconds(1, 0):
                self._calibrate(limits)
        return self._draft

    def _calibrate(self, limits: Limits) -> None:
        """Measure passes of a few sizes and discard their rows, so that the cost of guesses is known in the first round."""
        largest = min(limits.nodes, self.tree_nodes or limits.depth + 1, limits.positions - self.state.length)
        sizes = [size for size in _CALIBRATED if size < largest] + [largest]
        fastest: dict[int, float] = {}
        for size in _REPEATS * sizes if largest > 1 else []:
            chain = np.arange(size, dtype=np.int32)
            work = Pass(ids=np.zeros(size, np.int32), positions=self.state.length + chain, logits=chain)
            (result,) = self.target.submit([(self.state, work)]).result()
            fastest[size] = min(result.seconds, fastest.get(size, math.inf))
        self.state.truncate(self.state.length)  # gives rows of a shared cache back
        for size, seconds in fastest.items():
            self.cost.observe(size, seconds)

    def start(self, request: Request) -> AutoregressiveSequence:
        """Return the sequence of a request. It takes the decoder over from an earlier one, which must not go on.

        Raises:
            EdgedecError: the prompt is empty or fills the context.
        """
        self.check(request)
        return AutoregressiveSequence(self, request)

    def begin_speculation(self, limits: Limits) -> Adaptive:
        """Return the decision whether to speculate, which is kept from request to request, for a new text."""
        self._adaptive = self._adaptive or Adaptive(limits.depth, self.price)
        self._adaptive.begin()
        return self._adaptive


class AutoregressiveSequence(PromptSequence):
    """A text that is written with trees of guesses.

    Parameters:
        decoder: has the cache, the draft, and what was measured so far.
        request: the prompt and the settings.
    """

    def __init__(self, decoder: AutoregressiveDecoder, request: Request) -> None:
        super().__init__(decoder, request)
        self._decoder, self._limits = decoder, _with_possible_depth(request.limits)
        self._clock = RoundClock(time.perf_counter)
        self._tree = root_alone(request.prompt)
        self._taps = tuple(name for name in decoder.drafter.taps if name not in TOP_TAPS)
        verifier, likeliest = request.verifier, request.likeliest
        self._compiled: CompiledText | None = None
        self._certain = (verifier, likeliest) if isinstance(verifier, CertainVerifier) and likeliest else None

    def read_draft(self, rows: int) -> Drafting[bool]:
        """Open the draft and let its model read a part of the prompt. The time that this takes belongs to no round."""
        self._draft = self._decoder.open_draft(self._limits)
        if not self._limits.depth:
            return True
        with self._clock.reading:
            return (yield from reading(self._draft, self.text, rows))

    def begin_text(self) -> Drafting[None]:
        """Let the draft meet the text, and prepare the first round."""
        decoder, request, limits, prompt = self._decoder, self.request, self._limits, self.text
        if limits.depth:
            with self._clock.reading:
                yield from expanding(self._draft, prompt, root_alone(prompt), np.zeros(1, np.int32))
            self.rounds.read_seconds = self._clock.reading.take()
        self._adaptive = decoder.begin_speculation(limits)
        self._rows = min(limits.nodes, request.tree_nodes or limits.nodes)
        self._room = replace(limits, nodes=0)  # limits of the last tree
        self._ahead = Ahead(self._draft, positions=limits.positions, rounds=self.rounds, clock=time.perf_counter)
        self._compiled = compiled_text(decoder, request, self._draft, limits, self._ids)

    def next_tree(self, room: Room) -> Drafting[Pass]:
        """Return the pass of the next tree."""
        clock, text = self._clock, self.text
        self._share(room)
        clock.begin()
        tree = self._ahead.take(text) if self._adaptive.on else None
        if tree is None or len(tree.tokens) > room.rows:
            tree = (yield from self._grow(text, room.rows)) if self._limits.depth else root_alone(text)
        clock.end(clock.drafting)
        self._tree, work = tree, self._pass(tree)
        clock.end(clock.verifying)
        return work

    def _share(self, room: Room) -> None:
        """Expect the other sequences to have the rows and tokens of their last pass."""
        self._decoder.price.rows = room.beside
        if self._limits.depth and (room.beside or self._adaptive.texts > 1):
            plain = self._decoder.cost.seconds(1 + room.others, self._length - 1)
            self._adaptive.share(room.others, room.beside, room.tokens, plain)

    def write_rounds(
        self, target: Target, sequences: Sequence[TokenSequence], rooms: Sequence[Room]
    ) -> Sequence[WrittenRounds | Exception] | None:
        """Run rounds of all sequences in the compiled loop; None if a part of them is not compiled."""
        texts = [it for it in sequences if isinstance(it, AutoregressiveSequence) and it._is_compiled(target)]
        if len(texts) < len(sequences):
            return None
        plans = [text._next_rounds(room) for text, room in zip(texts, rooms, strict=True)]
        known = [plan for plan in plans if plan is not None]
        done = run_rounds(target, known) if len(known) == len(plans) else None
        if done is None:
            return None
        return [it if isinstance(it, Exception) else text._record(it) for text, it in zip(texts, done, strict=True)]

    def _is_compiled(self, target: Target) -> bool:
        """Return whether the compiled loop can run the next round."""
        decoder = self._decoder
        if self._compiled is None or self.reading or self.ended:
            return False
        if decoder.target is not target or decoder.rounds is not self.rounds:
            return False  # something sees the passes of the target, or another request has taken the decoder over
        if self._limits.depth and getattr(self._draft, "compiled", None) is not self._compiled.draft:
            # The drafter was released, or loaded again.
            self._compiled = compiled_text(decoder, self.request, self._draft, self._limits, self._ids)
        return self._compiled is not None

    def _next_rounds(self, room: Room) -> NextRounds | None:
        """Return the sizes of the next trees; None if the library does not grow trees as the policy does."""
        assert self._compiled is not None, "``_is_compiled`` was called before"
        self._share(room)
        nodes, depth, growth = 1, 0, PLAIN
        if self._limits.depth:
            size = self._size(self._length, room.rows)
            if size.depth:
                grow = getattr(self.request.policy, "compiled_growth", None)
                chosen = None if grow is None else grow(self._draft, size, self._adaptive.accept)
                if chosen is None:
                    return None
                growth, nodes, depth = chosen, size.nodes, min(size.depth, size.nodes - 1)
        state = cast("LendingState", self.state)  # a target that lends its inputs has such states
        return NextRounds(self._compiled, state, self._length, nodes, depth, growth)

    def _record(self, done: DoneRounds) -> WrittenRounds:
        """Record rounds of the compiled loop."""
        assert self._compiled is not None, "it has run them"
        count, device = done
        rounds, past = self._compiled.rounds, self._length - 1
        sizes, paths = rounds.tree_sizes[:count].tolist(), rounds.path_sizes[:count].tolist()
        length = self._length + sum(paths)
        ids = self._ids[past:length].tolist()
        self._decoder.cached += ids[:-1]
        self._length = length
        self.ended = length > self.request.limits.positions
        draft = rounds.draft_seconds[:count].tolist()
        verify = rounds.verify_seconds[:count].tolist()
        commit = rounds.commit_seconds[:count].tolist()
        tokens, at, guessing = list[Token](), 1, self._limits.depth > 0
        for number, (size, path) in enumerate(zip(sizes, paths, strict=True)):
            for token in ids[at : at + path - 1]:
                tokens.append(Token(token, True))
            tokens.append(Token(ids[at + path - 1], False))
            seconds = RoundSeconds(
                draft=draft[number], device=device[number], verify=verify[number], commit=commit[number]
            )
            if guessing:
                tree = TokenTree(tokens=rounds.tokens[number, :size], parents=rounds.parents[number, :size], draft={})
                outcome = Outcome(path=rounds.path[number, :path], next_token=ids[at + path - 1])
                self._count(tree, outcome, seconds, past=past + at - 1)
            else:  # there is nothing to learn, and a new tree and outcome would take time
                self.rounds.add(seconds)
                self._decoder.on_round(seconds)
            at += path
        return WrittenRounds(tokens, list(zip(sizes, device, strict=True)))

    @property
    def drafts_ahead(self) -> bool:
        """True if the target leaves the host free and the next tree is worth growing while the pass of this one runs."""
        return self._decoder.overlaps and not self.reading and self._ahead.pays(self._tree)

    def draft_ahead(self) -> Drafting[None]:
        """Grow the next tree."""
        with self._clock.ahead:
            yield from self._ahead.assume(self.text, self._tree, self._grow)

    def accept(self, result: PassResult | None) -> list[Token]:
        """Accept a path of the tree, commit its rows, and return its tokens and the one after them."""
        assert result is not None, "every round has a pass"
        clock, tree, text = self._clock, self._tree, self.text
        clock.begin()
        outcome = self._verify(tree, result, text)
        clock.end(clock.verifying)
        self.state.commit(outcome.path)
        clock.end(clock.committing)
        path, tokens = outcome.path.tolist(), tree.tokens.tolist()
        accepted = [tokens[node] for node in path]
        self._decoder.cached += accepted
        self._draft.observe(tree, outcome)
        clock.end(clock.observing)
        self._count(tree, outcome, clock.take(result.seconds, self.state), past=len(text) - 1)
        ids = [*accepted[1:], outcome.next_token]
        if self.request.logprobs is None:
            return [*(Token(token, guessed=True) for token in ids[:-1]), Token(ids[-1], guessed=False)]
        whole = np.append(text, np.array(accepted[1:], np.int32))
        return [
            Token(
                token,
                guessed=at < len(ids) - 1,
                logprobs=self.logprobs(result.logits[node], token, whole[: len(text) + at]),
            )
            for at, (node, token) in enumerate(zip(path, ids, strict=True))
        ]

    def _grow(self, text: I32, rows: int | None = None) -> Drafting[TokenTree]:
        """Return the next tree after ``text``; a root without guesses if there is no room or guesses do not pay.

        Args:
            text: the text, int32 [t].
            rows: number of rows that the pass may have; None: the largest tree's.
        """
        size = self._size(len(text), rows)
        if not size.depth:
            return root_alone(text)
        policy, adaptive = self.request.policy, self._adaptive
        return (yield from policy.grow(self._draft, text, size, self._decoder.price, adaptive.accept))

    def _size(self, length: int, rows: int | None = None) -> Limits:
        """Return the limits of the next tree after a text of ``length`` tokens; the depth is 0 if guesses do not pay."""
        limits = self._limits
        room = min(self._rows, rows or self._rows, limits.positions - length + 1)
        if room != self._room.nodes:  # it seldom changes, and a new object takes longer than the comparison
            self._room = replace(limits, nodes=room, depth=min(limits.depth, room - 1))
        return self._adaptive.size(self.request.policy, self._room, length)

    def _verify(self, tree: TokenTree, result: PassResult, text: I32) -> Outcome:
        """Return the outcome of a pass, including the drafter's taps."""
        request, drafter = self.request, self._decoder.drafter
        distribution = _distributions(request.processor, tree, result, text)
        if self._certain is None:
            outcome = request.verifier.accept(tree, distribution, request.random, request.dropped + len(text))
        else:
            verifier, likeliest = self._certain
            outcome = verifier.follow(tree, _distributions(likeliest, tree, result, text))
        if not drafter.taps:
            return outcome
        taps = {name: values[outcome.path] for name, values in result.taps.items()}
        if set(TOP_TAPS) <= set(drafter.taps):
            if request.greedy:
                learned = _distributions(request.learned or _unchanged, tree, result, text)
                rows = [learned(int(node))[: self._decoder.vocab_limit] for node in outcome.path]
            else:
                rows = [distribution(int(node)) for node in outcome.path]
            taps |= top_taps(rows, logits=request.greedy)
        return replace(outcome, taps=taps)

    def _count(self, tree: TokenTree, outcome: Outcome, seconds: RoundSeconds, *, past: int) -> None:
        """Update the statistics of the rounds and the decision whether to speculate."""
        self.rounds.observe(tree, outcome, seconds)
        self._decoder.on_round(seconds)
        self._adaptive.observe(
            tree,
            outcome,
            seconds=seconds.total,
            draft_seconds=seconds.drafting,
            pass_seconds=seconds.device,
            past=past,
        )

    def _pass(self, tree: TokenTree) -> Pass:
        """Return the pass that runs all nodes of a tree and returns the logits of each."""
        n, positions, visible, logits = len(tree.tokens), [self.state.length], None, _ROOT
        if n > 1:  # a round without guesses is the usual one, and makes as few arrays as possible
            for parent in tree.parents[1:].tolist():
                positions.append(positions[parent] + 1)
            visible, logits = tree_visibility(tree.parents), np.arange(n, dtype=np.int32)
        return Pass(
            ids=tree.tokens,
            positions=np.array(positions, np.int32),
            visible=visible,
            logits=logits,
            top_k=self.request.top_k,
            taps=self._taps,
        )


def _unchanged(logits: F32, text: I32) -> F32:
    return logits


def _distributions(
    processor: Callable[[F32, I32], _T], tree: TokenTree, result: PassResult, text: I32
) -> Callable[[int], _T]:
    """Return a function from a node to the processor's result for the token after it, with the path to it as history."""

    def distribution(node: int) -> _T:
        path = []
        ancestor = node
        while ancestor > 0:
            path.append(tree.tokens[ancestor])
            ancestor = int(tree.parents[ancestor])
        history = np.concatenate([text, np.array(path[::-1], np.int32)]) if path else text
        return processor(result.logits[node], history)

    return distribution


def _with_possible_depth(limits: Limits) -> Limits:
    """Return ``limits`` with the depth that a tree of ``limits.nodes`` nodes can have, so that no larger pass is priced."""
    return replace(limits, depth=min(limits.depth, limits.nodes - 1))
