"""Mutate a safetensors file: its header as JSON, and its tensors with consistent sizes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

from tests.attacks.fuzz.mutators.json_text import changed_value
from tests.attacks.fuzz.mutators.raw import Mutator, mutate_bytes
from tests.quantize.readers.support.make_checkpoints import safetensors_bytes

__all__ = ["safetensors"]

_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "I8": 1, "I32": 4, "I64": 8, "F64": 8, "BOOL": 1}
_SPECIAL = (
    b"\x00\x00\xc0\x7f",
    b"\x00\x00\x80\x7f",
    b"\x00\x00\x80\xff",
    b"\xff\xff\x7f\x7f",
    b"\x01\x00\x00\x00",
    bytes(4),
)
_MAX_BYTES = 1 << 15
_JSON_WORDS = (*_BYTES, "F4", "F8_E4M3", "F6_E2M3", "F7", "dtype", "shape", "data_offsets", "__metadata__")


def _parsed(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    if not isinstance(header, dict):
        raise ValueError
    return header, data[8 + length :]


def _taken_apart(data: bytes) -> list[list[Any]]:
    """Return [name, dtype, shape, its bytes] of each tensor."""
    header, body = _parsed(data)
    header.pop("__metadata__", None)
    return [
        [name, fields["dtype"], list(fields["shape"]), body[fields["data_offsets"][0] : fields["data_offsets"][1]]]
        for name, fields in header.items()
    ]


def _put_together(tensors: list[list[Any]]) -> bytes:
    """Write a file; each tensor's bytes are cut or padded to the size of its shape."""
    header, body = {}, b""
    for name, dtype, shape, content in tensors:
        size = min(math.prod(shape) * _BYTES.get(dtype, 4), _MAX_BYTES)
        content = content[:size].ljust(size, b"\x01")
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + size]}
        body += content
    return safetensors_bytes(header, body)


def _change(rng: random.Random, tensors: list[list[Any]], words: Sequence[str]) -> None:
    at = rng.randrange(len(tensors))
    tensor = tensors[at]
    kind = rng.randrange(8)
    if kind == 0:
        del tensors[at]
    elif kind == 1:
        tensor[0] = rng.choice((*words, tensor[0] + "x", tensor[0] + "_scale", rng.choice(tensors)[0]))
    elif kind == 2:
        tensor[1] = rng.choice(tuple(_BYTES))
    elif kind == 3:
        tensor[2][rng.randrange(len(tensor[2]) or 1) :] = [rng.choice((1, 2, 3, 4, 8, 12, 13, 32))]
    elif kind == 4:
        tensor[2] = rng.choice((tensor[2][::-1], [*tensor[2], 1], [math.prod(tensor[2])], [1, *tensor[2]], []))
    elif kind == 5:
        tensors.append([rng.choice((*words, "x")), *rng.choice(tensors)[1:]])
    elif kind == 6 and tensor[3]:
        place = rng.randrange(0, len(tensor[3]), 4)
        tensor[3] = tensor[3][:place] + rng.choice(_SPECIAL) + tensor[3][place + 4 :]
    else:
        tensor[3] = mutate_bytes(rng, tensor[3])


def safetensors(words: Sequence[str]) -> Mutator:
    """Return a mutator; ``words`` are names of tensors."""

    def mutate(rng: random.Random, data: bytes) -> bytes:
        kind = rng.random()
        try:
            if kind < 0.3:
                header, body = _parsed(data)
                return safetensors_bytes(changed_value(rng, header, (*words, *_JSON_WORDS)), body)
            if kind < 0.85:
                tensors = _taken_apart(data)
                for _ in range(rng.choice((1, 1, 2))):
                    _change(rng, tensors, words)
                return _put_together(tensors)
        except (ValueError, KeyError, TypeError, IndexError, RecursionError, UnicodeEncodeError, OverflowError):
            pass  # it is no safetensors file any more
        return mutate_bytes(rng, data)

    return mutate
