"""The part that decoders share: a cache whose rows are kept from prompt to prompt, and the passes that read a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime.decoders.rounds import Rounds
from edgedec.runtime.protocols import I32, Pass, PassResult, Request, State, Target, Ticket

__all__ = ["CachedDecoder"]

_NO_ROWS = np.zeros(0, np.int32)  # ``Pass.logits`` of passes over the prompt


@dataclass(kw_only=True)
class CachedDecoder:
    """A decoder's cache. It keeps the rows of a common prefix for the next prompt.

    Members:
        target: runs the passes.
        state: the cache, opened on ``target``.
        cached: ids of the state's committed rows.
        rounds: statistics of the rounds of the last request.
    """

    target: Target
    state: State
    cached: list[int] = field(default_factory=list)
    rounds: Rounds = field(default_factory=Rounds)

    def begin(self) -> Rounds:
        """Reset the statistics for a new request, and return those of its rounds."""
        self.rounds = Rounds()
        return self.rounds

    def shared_prefix(self, prompt: I32) -> int:
        """Return the number of rows of ``prompt`` that are in the cache already."""
        return self._common_prefix(prompt.tolist()[:-1])

    def _common_prefix(self, ids: list[int]) -> int:
        """Return the length of the longest common prefix of ``ids`` and the cached ids."""
        keep = 0
        while keep < min(len(ids), len(self.cached)) and ids[keep] == self.cached[keep]:
            keep += 1
        return keep

    def _check_prompt(self, request: Request) -> None:
        """Check that the prompt fits the context.

        Raises:
            EdgedecError: it is empty or leaves no room for an answer.
        """
        prompt, positions = request.prompt, request.limits.positions
        if not len(prompt):
            raise EdgedecError("the prompt has no tokens; it must have at least 1")
        if len(prompt) >= positions:
            raise EdgedecError(
                f"the prompt has {len(prompt)} tokens, the context holds {positions}, and the answer needs at least "
                f"one of them; shorten the prompt or give --ctx-size {len(prompt) + 1} or more"
            )

    def _check_alone(self, rounds: Rounds) -> None:
        """Check that no other request has started since the one that counts in ``rounds``.

        Raises:
            UsageError: another one has, and uses the cache.
        """
        if self.rounds is not rounds:
            raise UsageError(
                "another answer was started before this one ended; read an answer to its end, or close it, before "
                "you start the next"
            )

    def _prefill(self, request: Request) -> bool:
        """Make the cache hold exactly the prompt without its last token.

        Rows of the common prefix are kept, and the other tokens run in passes of ``limits.nodes`` rows. Returns False if
        the request was interrupted; the rows of finished passes are then kept.
        """
        ids, nodes = request.prompt[:-1].tolist(), request.limits.nodes
        keep = self._common_prefix(ids)
        self.state.truncate(keep)
        del self.cached[keep:]
        for start in range(keep, len(ids), nodes):
            request.on_prefill(start, len(ids))
            if request.interrupted():
                return False
            chunk = np.array(ids[start : start + nodes], np.int32)
            positions = np.arange(start, start + len(chunk), dtype=np.int32)
            self.rounds.prefill_seconds += self._run(Pass(ids=chunk, positions=positions, logits=_NO_ROWS)).seconds
            self.state.commit(np.arange(len(chunk), dtype=np.int32))
            self.cached += chunk.tolist()
        request.on_prefill(len(ids), len(ids))  # even if no pass was needed, so that a progress bar ends
        return True

    def _submit(self, work: Pass) -> Ticket:
        return self.target.submit([(self.state, work)])

    def _run(self, work: Pass) -> PassResult:
        """Run a pass and wait for its result."""
        (result,) = self._submit(work).result()
        return result
