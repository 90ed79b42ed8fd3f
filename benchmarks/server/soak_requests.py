"""The requests of the soak, and the texts that answer them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from edgedec import demo
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session

__all__ = ["CONTEXT", "KV_BITS", "requests", "texts_alone"]

CONTEXT = 512  # tokens of a text and its prompt
KV_BITS = 16  # a plan under a budget could choose others, with which texts are others
_BEGINNINGS = ("Once upon a time", "One day, a cat", "The moon", "Lily and her dog were", "Tom had a red ball, and")
_MIDDLES = ("", " and", " who liked the rain and", ", there was a boy. He")
_SCHEMAS: tuple[Mapping[str, Any], ...] = (
    {
        "type": "object",
        "properties": {"name": {"enum": ["Tom", "Lily"]}},
        "required": ["name"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 1, "maxItems": 3},
)


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    """Return different requests, as bodies of completions."""
    draw = random.Random(seed)
    return [
        {
            "prompt": draw.choice(_BEGINNINGS) + draw.choice(_MIDDLES),
            "max_tokens": draw.choice([8, 24, 24, 60, 240]),
            "temperature": draw.choice([0, 0.7, 1.2]),
            "seed": draw.randrange(1000),
            "repeat_penalty": draw.choice([1.0, 1.1]),
            "json_schema": draw.choice([None, None, None, *_SCHEMAS]),
        }
        for _ in range(count)
    ]


def texts_alone(asked: list[dict[str, Any]]) -> list[str]:
    """Return the text of each request, written by a session that writes one text at a time without guesses."""
    texts = []
    with Session.open(demo.bundle_path(), threads=1, ctx_size=CONTEXT, kv_bits=KV_BITS) as session:
        for body in asked:
            grammar = None if body["json_schema"] is None else Grammar.json_schema(body["json_schema"])
            options = {name: body[name] for name in ("temperature", "seed", "repeat_penalty")}
            answer = session.generate(
                body["prompt"], n_predict=body["max_tokens"], sampling=SamplingConfig(**options), grammar=grammar
            )
            texts.append(answer.text)
    return texts
