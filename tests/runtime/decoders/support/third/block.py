"""A third decoder, as somebody outside of the project would write it: it fills blocks of four tokens.

The rows of a block see each other, so a committed row is no causal function of the ids. A pass has all rows of the block;
those without a token have the filler. The last known row of the block gives the next token. Once all four are known, the
rows of that pass are committed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgedec.runtime.decoders._cached import CachedDecoder, PromptSequence
from edgedec.runtime.decoders._plugin import DecoderFigures, DecoderParts, DecoderTraits
from edgedec.runtime.protocols import I32, Drafting, Masks, Pass, PassResult, Request, Room, Token
from edgedec.runtime.visibility import pack

BLOCK = 4


@dataclass(frozen=True)
class Blocks:
    """The recipe: a row sees all rows of its block and of those before."""

    name: str = "blocks of 4"
    masks: Masks = "any"
    least: int = BLOCK

    def whole(self, length: int) -> int:
        return length // BLOCK * BLOCK

    def rows_pass(self, ids: I32, start: int, most: int) -> Pass:
        chunk = ids[start : start + self.whole(most)]
        block = np.arange(len(chunk)) // BLOCK
        return Pass(
            ids=chunk,
            positions=start + np.arange(len(chunk), dtype=np.int32),
            visible=pack(block[:, None] >= block),
            logits=np.zeros(0, np.int32),
        )


@dataclass(frozen=True, kw_only=True)
class Options:
    filler: int = 0  # id of a row that has no token yet


TRAITS = DecoderTraits(
    summary="the model fills blocks of four tokens",
    guesses=False,
    drafters=("none",),
    lossless="exact",
    least_rows=BLOCK,
    recipe=Blocks(),
)
OPTIONS = Options


@dataclass(kw_only=True, eq=False)
class BlockDecoder(CachedDecoder):
    options: Options
    blocks: int = 0

    @property
    def speculating(self) -> bool:
        return False

    @property
    def figures(self) -> DecoderFigures:
        text = f"decoder block: {self.blocks} blocks"
        return DecoderFigures(name="block", text=text, values={"blocks": self.blocks})

    def start(self, request: Request) -> BlockSequence:
        self.check(request)
        return BlockSequence(self, request)


class BlockSequence(PromptSequence):
    def __init__(self, decoder: BlockDecoder, request: Request) -> None:
        super().__init__(decoder, request)
        self._decoder = decoder
        decoder.blocks = 0

    def read_draft(self, rows: int) -> Drafting[bool]:
        yield from ()
        return True

    def begin_text(self) -> Drafting[None]:
        yield from ()

    def next_tree(self, room: Room) -> Drafting[Pass | None]:
        yield from ()
        start, limits = self.state.length, self.request.limits
        ids = np.full(min(BLOCK, limits.positions - start), self._decoder.options.filler, np.int32)
        self._known = len(self.text) - start
        ids[: self._known] = self.text[start:]
        work = self._decoder.recipe.rows_pass(np.concatenate([self.text[:start], ids]), start, BLOCK)
        return Pass(
            ids=work.ids,
            positions=work.positions,
            visible=work.visible,
            logits=np.array([self._known - 1], np.int32),
            top_k=self.request.top_k,
        )

    def accept(self, result: PassResult | None) -> list[Token]:
        assert result is not None
        (row,), text = result.logits, self.text
        if self._known == BLOCK:
            self._decoder.cached += text[-BLOCK:].tolist()
            self.state.commit(np.arange(BLOCK, dtype=np.int32))
            self._decoder.blocks += 1
        self.rounds.count += 1
        self.rounds.verify_seconds += result.seconds
        token = self.choose(row, text)
        return [Token(token, guessed=False, logprobs=self.logprobs(row, token, text))]


def create(parts: DecoderParts, options: Options) -> BlockDecoder:
    return BlockDecoder(target=parts.target, state=parts.state, cost=parts.cost, options=options)
