"""Open every decoder over a pair of small random models, with what a request needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.plugins import load
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.decoders._cached import CachedDecoder
from edgedec.runtime.decoders._plugin import DecoderParts, choose_decoder
from edgedec.runtime.drafters.model import create
from edgedec.runtime.planning.speculation import create_policy, create_verifier
from edgedec.runtime.protocols import I32, Limits, Request
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target

__all__ = ["LIMITS", "PROMPT", "VOCAB", "Pair", "make_pair", "request"]

VOCAB = 61
LARGE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "vocab_size": VOCAB,
    "max_position_embeddings": 96,
    "tie_word_embeddings": False,
}
SMALL = LARGE | {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
LIMITS = Limits(nodes=4, depth=0, positions=64)
PROMPT = np.array([3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 9, 7], np.int32)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A large and a small bundle with one tokenizer."""

    large: Bundle
    small: Bundle

    def decoder(self, name: str) -> CachedDecoder:
        """Return a decoder on the large model, from a value of ``--decoder``; the small one is its draft model, if any."""
        chosen, target = choose_decoder(name), open_target(self.large, limits=LIMITS, threads=1)
        drafter = (*chosen.traits.drafters, "none")[0]
        parts = DecoderParts(
            target=target,
            state=target.open(LIMITS),
            drafter=create(self.small) if drafter == "model" else load("edgedec.runtime.drafters", drafter).create(),
            cost=ObservedCost(target.cost_model),
            vocab_limit=VOCAB,
        )
        return chosen.create(parts)


def make_pair(folder: Path, *, tokenizer_json: str | None = None, **small: Any) -> Pair:
    """Write the two bundles. ``small`` changes the configuration of the small one."""
    write_random_bundle(folder / "large", LARGE, "int8", seed=3, tokenizer_json=tokenizer_json)
    write_random_bundle(folder / "small", SMALL | small, "int8", seed=4, tokenizer_json=tokenizer_json)
    return Pair(large=Bundle.open(folder / "large"), small=Bundle.open(folder / "small"))


def request(
    prompt: I32 = PROMPT,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    limits: Limits = LIMITS,
    interrupted: Callable[[], bool] = lambda: False,
) -> Request:
    """Return a request without guesses."""
    return Request(
        prompt=prompt,
        limits=limits,
        processor=Sampler(SamplingConfig(temperature=temperature), VOCAB).distribution,
        policy=create_policy("chain"),
        verifier=create_verifier("match", temperature),
        random=PositionRandom(seed=seed),
        interrupted=interrupted,
    )
