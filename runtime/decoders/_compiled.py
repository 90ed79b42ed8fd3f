"""Rounds of one text in the compiled loop (``runtime/loop``), while no other text is written beside it.

The loop runs the rounds whose parts are all compiled: the drafters that read the text alone, the policies ``chain``,
``static`` and ``dynamic`` with chosen children, the verifiers ``greedy`` and ``match``, and a target that lends its inputs.
Other rounds run in Python. The trees and the text are the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, cast

from edgedec.errors import CacheFullError, DeviceError
from edgedec.runtime import loop
from edgedec.runtime.loop.inputs import LoopInputs
from edgedec.runtime.loop.rounds import MOST_NODES, MOST_ROUNDS, RoundBounds, RoundsRunner, Stop
from edgedec.runtime.loop.sampling import CompiledSampling
from edgedec.runtime.loop.trees import CHAIN, CompiledGrowth
from edgedec.runtime.protocols import F32, I32, CertainVerifier, Draft, Limits, Request, State, Target

if TYPE_CHECKING:
    from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder

__all__ = ["CompiledRounds", "compiled_rounds"]

_PLAIN = CompiledGrowth(CHAIN)  # the growth of a root without guesses
_WITH_GUESSES = 4  # rounds of a call after which the size of trees may change


class LendingState(State, Protocol):
    """A state whose rows the compiled loop writes and commits."""

    def reserve(self, rows: int) -> tuple[I32, int]:
        """Take the room for ``rows`` new rows. Return the table of blocks, int32, and the number of blocks in it."""

    def advance(self, length: int) -> None:
        """Note that all rows up to ``length`` are written and committed."""


class LendingTarget(Target, Protocol):
    """A target whose passes the compiled loop can run."""

    def lend(self, state: State, rows: int) -> LoopInputs | None:
        """Return the inputs and outputs of passes of up to ``rows`` rows; None if the loop cannot use them."""


class CompiledRounds:
    """The rounds of one text.

    Parameters:
        library: the library.
        target: runs the passes.
        request: the settings.
        text: int32 [positions + 1], the array of the text.
        draft: address of the draft; 0: there are no guesses.
        nodes: nodes of the largest tree.

    Members:
        draft: the parameter of this name. The caller checks before each call that the draft still has this address.
        runner: the results of the last call.
    """

    def __init__(
        self,
        library: loop.Loop,
        target: LendingTarget,
        request: Request,
        text: I32,
        *,
        draft: int,
        nodes: int,
    ) -> None:
        assert request.sampler is not None, "``compiled_rounds`` has checked it"
        self._target, self._request, self._nodes = target, request, nodes
        self._text, self._pass_seconds, self.draft = text, math.inf, draft
        self.runner = RoundsRunner(
            library,
            text=text,
            options=CompiledSampling(request.sampler, request.random),
            ends=request.ends,
            dropped=request.dropped,
            draft=draft,
            nodes=nodes,
        )

    def run(self, state: State, length: int, growth: CompiledGrowth | None, size: Limits) -> tuple[int, int] | None:
        """Run rounds.

        Args:
            state: the cache.
            length: tokens of the text.
            growth: rule by which trees grow; None: there are no guesses.
            size: nodes and depth of the trees.

        Returns:
            The new length of the text, and the number of rounds; None if the loop cannot run them.

        Raises:
            DeviceError: the target failed, or returned logits that give no token.
            CacheFullError: the shared cache has no room for a pass.
        """
        inputs = self._target.lend(state, self._nodes)
        if inputs is None:
            return None
        rows = cast("LendingState", state)  # a target that lends its inputs has such states
        nodes, depth = (1, 0) if growth is None else (size.nodes, min(size.depth, size.nodes - 1))
        bounds = self._bounds(nodes, depth, length)
        try:
            blocks, held = rows.reserve(self._rows(bounds, length))
        except CacheFullError:  # the room of one round is what a pass takes without this loop
            bounds = self._bounds(nodes, depth, length, alone=True)
            blocks, held = rows.reserve(self._rows(bounds, length))
        inputs.runner.error = None
        end, rounds, stop = self.runner.run(length, inputs, blocks, held, growth or _PLAIN, bounds)
        if rounds:
            self._pass_seconds = float(self.runner.pass_seconds[rounds - 1])
        rows.advance(end - 1)
        if inputs.runner.error is not None:
            raise self._failure(inputs, end)
        if not rounds:
            if stop == Stop.NO_TOKEN:
                self._raise_no_token(inputs.logits)
            if stop == Stop.FAILED:
                raise DeviceError("the compiled loop could not move rows of the cache; run `edgedec doctor`")
            return None
        return end, rounds

    def _bounds(self, nodes: int, depth: int, length: int, *, alone: bool = False) -> RoundBounds:
        request = self._request
        written, most = length - len(request.prompt), request.most_tokens
        rounds = 1
        if not alone and request.ahead_seconds > 0:
            enough = int(min(MOST_ROUNDS, 1 + request.ahead_seconds / max(1e-9, self._pass_seconds)))
            rounds = enough if depth == 0 else min(enough, _WITH_GUESSES)
        return RoundBounds(
            nodes=nodes,
            depth=depth,
            tokens=max(1, most - written) if most >= 0 else len(self._text),
            rounds=rounds,
            seconds=request.ahead_seconds,
        )

    def _rows(self, bounds: RoundBounds, length: int) -> int:
        """Return the number of rows that the rounds may take."""
        wide = bounds.nodes + (bounds.rounds - 1) * (bounds.depth + 1)
        return min(wide, len(self._text) - length)

    def _failure(self, inputs: LoopInputs, length: int) -> BaseException:
        error = inputs.runner.error
        assert error is not None, "the caller has checked it"
        if not isinstance(error, Exception):  # the user's interruption
            return error
        failure = DeviceError(f"ONNX Runtime failed in a pass over {length - 1} rows on cpu: {error}")
        failure.__cause__ = error
        return failure

    def _raise_no_token(self, logits: F32) -> None:
        """Raise the error of Python's sampler for the row of logits that gives no token."""
        runner, request = self.runner, self._request
        assert request.sampler is not None, "the rounds were made with it"
        request.sampler.distribution(logits[runner.bad_node], request.prompt)
        raise DeviceError(f"row {runner.bad_node} of a pass has no likeliest token; run `edgedec doctor`")


def compiled_rounds(
    decoder: AutoregressiveDecoder, request: Request, draft: Draft, limits: Limits, text: I32
) -> CompiledRounds | None:
    """Return the rounds of a text in the compiled loop; None if a part of them is not compiled, or without the library."""
    target, nodes = decoder.target, min(limits.nodes, request.tree_nodes or limits.nodes) if limits.depth else 1
    address = getattr(draft, "compiled", None) if limits.depth else 0
    if (
        request.sampler is None
        or request.logprobs is not None
        or request.top_k
        or not getattr(request.verifier, "compiled", False)
        or (isinstance(request.verifier, CertainVerifier) and not request.greedy)
        or address is None
        or decoder.overlaps
        or nodes > MOST_NODES
        or getattr(type(target), "lend", None) is None  # a wrapper's class has no such method, so it sees every pass
        or (library := loop.load()) is None
    ):
        return None
    return CompiledRounds(library, target, request, text, draft=address, nodes=nodes)  # type: ignore[arg-type]
