"""A known answer: what a program computes for fixed tokens, as hashes, layer by layer, and the likeliest tokens.

It is computed where the program is right by definition, on the interpreter, and compared on a board. The first layer's keys
and values are a product each; those of the second depend on all parts of the first layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError
from edgedec.hw.isa.instructions import Instruction, Opcode
from edgedec.runtime.driver.driver import BEST, Driver
from edgedec.runtime.driver.regions import region_at

__all__ = ["KnownAnswer", "compute_answer"]

_MOST_TOKENS = 4  # tokens of the first pass


@dataclass(frozen=True, kw_only=True)
class KnownAnswer:
    """Results of a program for fixed tokens.

    Members:
        layers: SHA-256 of the keys and values of the tokens, by the name of the layer's attention, in the program's order.
        tokens: the likeliest tokens after one more pass over the committed ones.
        logits: SHA-256 of the scales and logits of these.
    """

    layers: Mapping[str, str]
    tokens: tuple[int, ...]
    logits: str

    def as_json(self) -> dict[str, Any]:
        """Return the content of known_answer.json."""
        return asdict(self)

    @classmethod
    def of_json(cls, content: Any) -> KnownAnswer:
        """Invert ``as_json``.

        Raises:
            BundleError: the content is not of this form.
        """
        good = isinstance(content, dict) and set(content) == {"layers", "tokens", "logits"}
        if not good or not isinstance(content["layers"], dict) or not isinstance(content["tokens"], list):
            raise BundleError("a known answer has layers, tokens and logits")
        hashes = [content["logits"], *content["layers"].values()]
        if not all(isinstance(one, str) and len(one) == 64 for one in hashes):
            raise BundleError("the hashes of a known answer have 64 hexadecimal digits")
        if not all(type(token) is int for token in content["tokens"]):
            raise BundleError("the tokens of a known answer are whole numbers")
        return cls(layers=content["layers"], tokens=tuple(content["tokens"]), logits=content["logits"])


def compute_answer(driver: Driver) -> KnownAnswer:
    """Run two passes over an empty cache, and leave it empty.

    Raises:
        DeviceError: see ``Driver.forward``.
    """
    program, config = driver.program, driver.program.config
    count = min(_MOST_TOKENS, config.slots, config.context - 1)
    ids = ((1 + 7 * np.arange(count)) % program.host.vocab).astype(np.int32)
    rows = np.arange(count, dtype=np.int32)
    driver.truncate(0)
    try:
        driver.forward(ids, logits=BEST)
        layers = {
            name: hashlib.sha256(_rows(driver, one, count).tobytes()).hexdigest()
            for name, one in zip(program.names, program.instructions, strict=True)
            if one.opcode == Opcode.ATTEND
        }
        driver.commit(rows)
        driver.forward(ids[:1], logits=BEST)
        best = driver.results(rows[:1])
    finally:
        driver.truncate(0)
    digest = hashlib.sha256(b"".join(part.tobytes() for part in (best.logits, best.mantissa, best.exponent)))
    return KnownAnswer(layers=layers, tokens=tuple(best.ids[0].tolist()), logits=digest.hexdigest())


def _rows(driver: Driver, of: Instruction, count: int) -> NDArray[np.uint8]:
    """Return the rows of the first ``count`` positions of a layer, uint8 [runs, count, head_dim]."""
    config = driver.program.config
    layout = config.kv_layout
    size = layout.beats(count) * config.beat_bytes
    found = []
    for run in range(2 * of["kv_heads"]):
        name, first = region_at(driver.program.cache_regions, of["start"] + run * of["run"])
        content = driver.regions[name].logical(first * config.beat_bytes, size)
        groups = content.reshape(-1, layout.chunks, layout.positions, layout.chunk)
        found.append(groups.transpose(0, 2, 1, 3).reshape(-1, config.head_dim)[:count])
    return np.stack(found)
