"""The decoder that writes a text in rounds (``runtime/rounds/round.py``), with what it measures from text to text.

The engine (``runtime/engine``) calls a sequence for one text or for many, whose passes it submits together. Between
submitting a pass and waiting for its result the host may grow the next tree (``runtime/rounds/ahead.py``), unless the
rounds are those of the compiled loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from edgedec.errors import UsageError
from edgedec.plugins import load
from edgedec.runtime.capabilities import TappedDraft, compiled_part
from edgedec.runtime.decoders._cached import CachedDecoder, PromptSequence
from edgedec.runtime.decoders._plugin import DecoderParts, DecoderTraits
from edgedec.runtime.drafting import expanding, keep_taps, reading, take_taps, tapped
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
    State,
    Target,
    Token,
    TokenSequence,
    TokenTree,
    WrittenRounds,
)
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.rounds.ahead import Ahead, root_alone
from edgedec.runtime.rounds.compiled import run_rounds
from edgedec.runtime.rounds.compiled_text import CompiledText, DoneRounds, NextRounds, compiled_text, land, say_python
from edgedec.runtime.rounds.cost import CostBeside, ObservedCost
from edgedec.runtime.rounds.round import RoundParts, begin_round, end_round, grow, speculative_round
from edgedec.runtime.rounds.statistics import RoundClock, Rounds, RoundSeconds
from edgedec.runtime.sampling.target_top import graph_taps

__all__ = ["OPTIONS", "TRAITS", "AutoregressiveDecoder", "AutoregressiveSequence", "Rounds", "create", "open_decoder"]

OPTIONS = None
TRAITS = DecoderTraits(summary="the model writes every token, or accepts it as a guess")

_CALIBRATED = (1, 2, 4, 16)  # numbers of rows of the passes measured before the first round, besides the largest tree's
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
    def guesser(self) -> Drafter:
        """The drafter."""
        return self.drafter

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

    @property
    def target_taps(self) -> tuple[str, ...]:
        """Names of the target's values that the draft needs."""
        return graph_taps(self.drafter.taps) if isinstance(self._draft, TappedDraft) else ()

    def known_rows(self, request: Request) -> int:
        """Return the number of the prompt's first rows of which the draft has the target's values."""
        if not request.limits.depth or not graph_taps(self.drafter.taps):
            return super().known_rows(request)
        return tapped(self.open_draft(request.limits), request.prompt)

    def start(self, request: Request) -> AutoregressiveSequence:
        """Return the sequence of a request. It takes the decoder over from an earlier one, which must not go on.

        Raises:
            EdgedecError: the prompt is empty or fills the context.
            UsageError: the request has no tree policy or no verifier.
        """
        self.check(request)
        if request.policy is None or request.verifier is None:
            raise UsageError("this decoder makes guesses; give the request a tree policy and a verifier")
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
        self._compiled: CompiledText | None = None
        self._tree: TokenTree | None = None  # the tree of this round; None before the first one
        if self.prompt_taps:
            keep_taps(decoder.open_draft(self._limits), self._ids[: self.kept])

    def read_draft(self, rows: int) -> Drafting[bool]:
        """Open the draft and let its model read a part of the prompt. The time that this takes belongs to no round."""
        self._draft = self._decoder.open_draft(self._limits)
        if not self._limits.depth:
            return True
        land(self._decoder.target)
        with self._clock.reading:
            return (yield from reading(self._draft, self.text, rows))

    @property
    def prompt_taps(self) -> tuple[str, ...]:
        """Names of the values that the draft needs for the rows of the prompt, if a text follows."""
        return self._decoder.target_taps if self._limits.depth and not self.request.row_tap else ()

    def take_taps(self, ids: I32, taps: Mapping[str, F32]) -> None:
        """Hand the draft the values of rows of the prompt."""
        take_taps(self._draft, ids, taps)

    def begin_text(self) -> Drafting[None]:
        """Let the draft meet the text, and prepare the first round."""
        decoder, request, limits, prompt = self._decoder, self.request, self._limits, self.text
        if limits.depth:
            land(decoder.target)
            with self._clock.reading:
                yield from expanding(self._draft, prompt, root_alone(prompt), np.zeros(1, np.int32))
            self.rounds.read_seconds = self._clock.reading.take()
        self._parts = RoundParts(
            request=request,
            draft=self._draft,
            taps=decoder.drafter.taps,
            vocab_limit=decoder.vocab_limit,
            limits=limits,
            cost=decoder.price,
            adaptive=decoder.begin_speculation(limits),
            ahead=Ahead(self._draft, positions=limits.positions, rounds=self.rounds, clock=time.perf_counter),
            clock=self._clock,
            target_top_k=decoder.target.info.top_k,
        )
        self._compile()

    def next_tree(self, room: Room) -> Drafting[Pass]:
        """Return the pass of the next tree."""
        land(self._decoder.target)
        self._share(room)
        self._round = speculative_round(self._parts, self.state, self.text, room.rows)
        self._tree, work = yield from begin_round(self._round)
        return work

    def _share(self, room: Room) -> None:
        """Expect the other sequences to have the rows and tokens of their last pass."""
        decoder, adaptive = self._decoder, self._parts.adaptive
        decoder.price.rows = room.beside
        if self._limits.depth and (room.beside or adaptive.texts > 1):
            plain = decoder.cost.seconds(1 + room.others, self._length - 1)
            adaptive.share(room.others, room.beside, room.tokens, plain)

    @property
    def drafts_ahead(self) -> bool:
        """True if the target leaves the host free and the next tree is worth growing while the pass of this one runs."""
        return self._decoder.overlaps and self._tree is not None and self._parts.ahead.pays(self._tree)

    def draft_ahead(self) -> Drafting[None]:
        """Grow the next tree."""
        assert self._tree is not None, "``drafts_ahead`` has said so"
        with self._clock.ahead:
            yield from self._parts.ahead.assume(self.text, self._tree, partial(grow, self._parts))

    def accept(self, result: PassResult | None) -> list[Token]:
        """Accept a path of the tree, commit its rows, and return its tokens and the one after them."""
        tree, text = self._tree, self.text
        assert tree is not None, "every round has a tree"
        assert result is not None, "every round has a pass"
        outcome = end_round(self._round, result)
        path, tokens = outcome.path.tolist(), tree.tokens.tolist()
        accepted = [tokens[node] for node in path]
        self._decoder.cached += accepted
        self._count((tree, outcome), self._clock.take(result.seconds, self.state), past=len(text) - 1)
        ids = [*accepted[1:], outcome.next_token]
        if self.request.logprobs is None:
            return _tokens(ids)
        whole, top = np.append(text, np.array(accepted[1:], np.int32)), result.top
        return [
            Token(
                token,
                guessed=at < len(ids) - 1,
                logprobs=self.logprobs(
                    result.logits[node], token, whole[: len(text) + at], None if top is None else top.row(node)
                ),
            )
            for at, (node, token) in enumerate(zip(path, ids, strict=True))
        ]

    def write_rounds(
        self, target: Target, sequences: Sequence[TokenSequence], rooms: Sequence[Room]
    ) -> Sequence[WrittenRounds | Exception] | None:
        """Run rounds of all sequences in the compiled loop; None if a part of them is not compiled."""
        texts = [text for text in sequences if isinstance(text, AutoregressiveSequence) and text._is_compiled(target)]
        if len(texts) < len(sequences):
            return None
        plans = [text._next_rounds(room) for text, room in zip(texts, rooms, strict=True)]
        known = [plan for plan in plans if plan is not None]
        done = run_rounds(known) if len(known) == len(plans) else None
        if done is None:
            return None
        return [
            result if isinstance(result, Exception) else text._record(plan.text, result)
            for text, plan, result in zip(texts, known, done, strict=True)
        ]

    def _compile(self) -> None:
        """Prepare the rounds of the compiled loop, if it knows all of their parts."""
        target, self._compiled = self._decoder.target, None
        if self._decoder.overlaps and compiled_part(target) is None:
            say_python("the next tree grows while a pass runs")
        elif self._decoder.target_taps:
            say_python("the drafter reads the target's values")
        else:
            self._compiled = compiled_text(
                target, self.request, self._draft, self._limits, self._ids, self._decoder.price
            )

    def _is_compiled(self, target: Target) -> bool:
        """Return whether the compiled loop can run the next round."""
        decoder = self._decoder
        if self._compiled is None or self.reading or self.ended:
            return False
        if decoder.target is not target or decoder.rounds is not self.rounds:
            return False  # something sees the passes of the target, or another request has taken the decoder over
        if self._limits.depth and not self._compiled.has(self._draft):
            self._compile()
        return self._compiled is not None

    def _next_rounds(self, room: Room) -> NextRounds | None:
        """Return the next rounds of the compiled loop; None if it cannot run them."""
        assert self._compiled is not None, "``_is_compiled`` was called before"
        self._share(room)
        parts = self._parts
        size = parts.size(self._length, room.rows)
        return self._compiled.next_rounds(self.state, self._length, size, parts.adaptive.accept)

    def _record(self, compiled: CompiledText, done: DoneRounds) -> WrittenRounds:
        """Record rounds of the compiled loop."""
        results, past = list(compiled.results(done, self._length)), self._length - 1
        self._length += sum([len(tokens) for tokens, _, _ in results])
        self._decoder.cached += self._ids[past : self._length - 1].tolist()
        self.ended = self._length > self.request.limits.positions
        written = WrittenRounds([], [])
        for tokens, seconds, learned in results:
            written.tokens.extend(_tokens(tokens))
            written.passes.append((1 if learned is None else len(learned[0].tokens), seconds.device))
            self._count(learned, seconds, past=past)
            past += len(tokens)
        return written

    def _count(self, learned: tuple[TokenTree, Outcome] | None, seconds: RoundSeconds, *, past: int) -> None:
        """Update the statistics of the rounds, and with a tree and its outcome the decision whether to speculate."""
        if learned is None:
            self.rounds.add(seconds)
        else:
            self.rounds.observe(*learned, seconds)
        self._decoder.on_round(seconds)
        if learned is not None:
            self._parts.adaptive.observe(
                *learned,
                seconds=seconds.total,
                draft_seconds=seconds.drafting,
                pass_seconds=seconds.device,
                past=past,
            )


def _tokens(ids: list[int]) -> list[Token]:
    """Return the tokens of a round: accepted guesses, and the token after them."""
    return [*[Token(token, guessed=True) for token in ids[:-1]], Token(ids[-1], guessed=False)]


def _with_possible_depth(limits: Limits) -> Limits:
    """Return ``limits`` with the depth that a tree of ``limits.nodes`` nodes can have, so that no larger pass is priced."""
    return replace(limits, depth=min(limits.depth, limits.nodes - 1))


def create(parts: DecoderParts, options: None) -> AutoregressiveDecoder:
    """Return the decoder of a text (entry point of the plug-in)."""
    return AutoregressiveDecoder(
        target=parts.target,
        state=parts.state,
        drafter=parts.drafter,
        vocab_limit=parts.vocab_limit,
        cost=parts.cost,
        overlaps=parts.overlaps,
        tree_nodes=parts.tree_nodes,
    )


def open_decoder(
    target: Target,
    state: State,
    *,
    drafter: str | Drafter = "none",
    vocab_limit: int = 0,
    overlaps: bool = False,
    tree_nodes: int = 0,
) -> AutoregressiveDecoder:
    """Return a decoder on ``target`` with a cost of its own.

    Args:
        target: runs the passes.
        state: the cache to use, opened on ``target``.
        drafter: a drafter, or the name of one.
        vocab_limit: number of the tokenizer's ids; 0: the target's vocabulary.
        overlaps: grow the next tree while a pass runs; for targets that leave the host free.
        tree_nodes: nodes of the largest tree; 0: the longest chain.

    Raises:
        UsageError: no drafter has this name; the message lists the known names.
    """
    parts = DecoderParts(
        target=target,
        state=state,
        drafter=load("edgedec.runtime.drafters", drafter).create() if isinstance(drafter, str) else drafter,
        cost=ObservedCost(target.cost_model),
        vocab_limit=vocab_limit or target.info.vocab,
        overlaps=overlaps,
        tree_nodes=tree_nodes,
    )
    return create(parts, OPTIONS)
