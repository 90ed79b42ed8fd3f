"""Make requests for a loaded model of prompts and of the options of answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from edgedec.runtime.base.pause import Pause
from edgedec.runtime.coupling import Coupled
from edgedec.runtime.grammar.constrained import ConstrainedPolicy, constrained, masked
from edgedec.runtime.grammar.reasoning import AnswerMasks
from edgedec.runtime.planning.planning import RunPlan
from edgedec.runtime.planning.speculation import create_policy, create_verifier, verifier_traits
from edgedec.runtime.protocols import F32, I32, Processor, Request, TreePolicy
from edgedec.runtime.sampling.likeliest import RowLikeliest
from edgedec.runtime.sampling.logprobs import TokenLogprobs, processed_logprobs, token_logprobs
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, checked_sampling
from edgedec.runtime.text_settings import TextSettings

__all__ = ["RequestBuilder"]

_AHEAD_SECONDS = 0.004  # a delay of tokens that no reader sees
_WHOLE_SECONDS = 0.25  # the same for the interruption of a text that is read at its end


class RequestBuilder:
    """Makes the requests of a session.

    It keeps the tree policies from request to request, because they learn.

    Parameters:
        run: plan of the run, with its limits and its settings of speculation.
        vocab: number of ids.
        top_k: number of likeliest tokens of a row that the target returns faster than whole rows; 0: none.

    Members:
        pause: signal to the rounds of all requests.
    """

    def __init__(self, run: RunPlan, *, vocab: int, top_k: int = 0) -> None:
        self._run, self._vocab, self._top_k = run, vocab, top_k
        self.pause = Pause()
        self._policies: dict[str, TreePolicy] = {}  # by kind of children
        self._draws: np.random.Generator | None = None  # for policies that draw children; each request gives it a seed

    def build(
        self,
        prompt: I32,
        text: TextSettings,
        *,
        constraint: AnswerMasks | None,
        ends: Sequence[int],
        on_prefill: Callable[[int, int], None],
        row_tap: str = "",
    ) -> Request:
        """Return the request for a continuation of ``prompt``, int32 [n].

        Args:
            prompt: the prompt.
            text: the settings of the answer.
            constraint: the grammar of the answer; None: any text.
            ends: ids that end the answer.
            on_prefill: called with the rows of the prompt that are in the cache, and their total.
            row_tap: name of the graph value that ``text.on_rows`` gets.
        """
        config, sample, logprobs = checked_sampling(text.sampling), text.sample, text.logprobs
        spec, sampler = self._run.spec, Sampler(config, self._vocab)
        random = PositionRandom.seeded(config.seed, sample)
        guesses = spec.writes.traits.guesses
        processor: Processor = sampler.distribution
        if constraint is not None:
            processor = constrained(processor, constraint)
        longer = bool(ends) and text.least_tokens > 0
        if longer:
            processor = _without(processor, ends, until=len(prompt) + text.least_tokens)
        figures: Callable[[F32, int, I32, RowLikeliest | None], TokenLogprobs] | None = None
        if logprobs is not None and text.logprobs_of == "sampling":
            figures = partial(processed_logprobs, top=logprobs, processor=processor)
        elif logprobs is not None or text.prompt_logprobs:
            figures = partial(token_logprobs, top=logprobs or 0, vocab=self._vocab)
        is_plain = constraint is None and not longer  # the sampler alone decides, which compiled rounds rely on
        needed = config.likeliest_needed if is_plain else 0
        log_sum = figures is not None and text.logprobs_of == "model"
        if needed and log_sum:  # the chosen token is among those that the sampler needs
            needed = max(needed, min(logprobs or 0, self._vocab))
        top_k = needed if needed <= self._top_k else 0
        return Request(
            prompt=prompt,
            limits=self._run.limits,
            tree_nodes=spec.nodes,
            processor=processor,
            policy=self._policy(sampler, random, text, constraint) if guesses else None,
            verifier=create_verifier(spec.verifier, config.temperature) if guesses else None,
            random=random,
            greedy=config.temperature == 0,
            sampler=sampler if is_plain else None,
            likeliest=sampler.likeliest if config.temperature == 0 and is_plain else None,
            learned=None if constraint is None else masked(constraint),
            dropped=text.dropped,
            top_k=top_k,
            log_sum=log_sum and top_k > 0,
            interrupted=text.interrupted,
            on_prefill=on_prefill,
            logprobs=figures,
            prompt_logprobs=text.prompt_logprobs,
            most_tokens=text.n_predict,
            ends=tuple(ends),
            ahead_seconds=_WHOLE_SECONDS if text.whole and not text.stop else _AHEAD_SECONDS,
            pause=self.pause,
            row_tap="" if text.on_rows is None else row_tap,
            on_rows=text.on_rows,
        )

    def lossless(self, request: Request, *, batch_invariant: bool) -> str:
        """Return in which sense the text is the one that would be written without guesses: ``Timings.lossless``."""
        spec = self._run.spec
        promised = spec.writes.traits.lossless
        kept = (
            verifier_traits(spec.verifier, 0 if request.greedy else 1).lossless if promised == "verifier" else promised
        )
        if kept != "exact" and (spec.drafter != "none" or promised != "verifier"):
            return kept
        return "exact" if batch_invariant else "up to float ties"

    def _policy(
        self, sampler: Sampler, random: PositionRandom, text: TextSettings, constraint: AnswerMasks | None
    ) -> TreePolicy:
        """Return the policy of a text, whose guesses follow the sampling options and the grammar."""
        children = verifier_traits(self._run.spec.verifier, sampler.config.temperature).children
        policy = self._grown(children, [random.seed, text.sample])
        if sampler.config.temperature:
            shared = random if children == "coupled" else None
            policy = Coupled(policy=policy, sampler=sampler, random=shared, dropped=text.dropped)
        return policy if constraint is None else ConstrainedPolicy(policy, constraint)

    def _grown(self, children: str, seed: Sequence[int]) -> TreePolicy:
        """Return the policy whose trees have such children.

        Args:
            children: kind of children, a value of ``VerifierTraits.children``.
            seed: seed of the numbers that the children of the next answer are drawn with.
        """
        kind = children if children in ("drawn", "independent") else "chosen"
        if kind != "chosen":
            self._draws = self._draws or np.random.default_rng(0)
            self._draws.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        policy = self._policies.get(kind)
        if policy is None:
            rng = None if kind == "chosen" else self._draws
            policy = create_policy(self._run.spec.policy, rng, independent=kind == "independent")
            self._policies[kind] = policy
        return policy


def _without(processor: Processor, ends: Sequence[int], *, until: int) -> Processor:
    """Return a processor that gives none of ``ends`` a probability while the text has less than ``until`` ids."""
    forbidden = np.array(ends, np.int64)

    def process(logits: F32, text: I32) -> F32:
        if len(text) < until:
            logits = logits.copy()
            logits[forbidden[forbidden < len(logits)]] = -np.inf
        return processor(logits, text)

    return process
