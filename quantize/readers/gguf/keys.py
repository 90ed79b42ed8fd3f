"""Read and check the metadata of a file's architecture, and name the keys that no reader uses.

Nothing in a file is left out silently: a key that llama.cpp uses is used or refused, and a key that llama.cpp leaves out for
the architecture is named in a note, unless it is listed here because it says nothing about the text.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.gguf.header import GgufHeader, Value
from edgedec.quantize.readers.untrusted import shown

__all__ = [
    "ARCHITECTURE_KEYS",
    "GENERAL_KEYS",
    "TOKENIZER_KEYS",
    "ArchitectureKeys",
    "check_general",
    "note_tokenizer_keys",
]

log = logging.getLogger(__name__)

# Keys of an architecture that say nothing about the text, and why.
ARCHITECTURE_KEYS: Mapping[str, str] = {
    "tensor_data_layout": "the tensors' own order is that of the architecture",
    "rope.scaling.finetuned": "it tells how the model was trained",
    "rope.dimension_sections": "it divides columns between the coordinates of an image, which are equal for text",
    "embedding_length_out": "it is the width of embeddings of a text",
    "pooling_type": "it makes embeddings of a text",
    "classifier.output_labels": "it names the classes of another head",
    "classifier.pooling_type": "it is for another head",
    "classifier.activation": "it is for another head",
}
_ANY_TOKENIZER = {
    "padding_token_id": "texts are not padded",
    "seperator_token_id": "it is put between two texts",  # spelled so in the format
    "cls_token_id": "it is for classifiers",
    "mask_token_id": "it is for training",
    "add_sep_token": "it is put between two texts",
    "token_type_count": "it is for pairs of texts",
    "unknown_token_id": "bytes stand for unknown characters",
}
# The same for ``tokenizer.ggml.*``, by the model of the vocabulary.
TOKENIZER_KEYS: Mapping[str, Mapping[str, str]] = {
    "llama": _ANY_TOKENIZER | {"merges": "pieces are joined by their scores", "pre": "texts are not split into words"},
    "gpt2": _ANY_TOKENIZER | {"scores": "merges have an order of their own"},
}
# Keys that belong to no architecture, by their beginnings, and why they say nothing about the text.
GENERAL_KEYS: Mapping[str, str] = {
    "general.": "they describe the file",
    "split.": "the parts of a model are joined by them",
    "quantize.": "they tell how the file was quantized",
    "prism.hadamard.": "they are checked with the rotations",
}
# Files that are no model, by general.type.
_NO_MODELS = ("adapter", "mmproj", "imatrix", "vocab", "dataset")
_MOST_NAMED = 20
_SUGGESTED = ("general.sampling.", "general.tensor_extra.")  # programs of llama.cpp use these beside the model


def short(value: float) -> float:
    """Return a float32 of the file as the shortest decimal number that it represents."""
    return float(f"{value:.7g}")


class ArchitectureKeys:
    """Reads and checks the metadata ``ARCHITECTURE.*`` of a file, and remembers which keys it was asked for."""

    def __init__(self, header: GgufHeader, name: str) -> None:
        self.header, self.name = header, name
        self.asked: set[str] = set()

    def _get(self, key: str) -> tuple[str, Value | None]:
        full = f"{self.name}.{key}"
        self.asked.add(full)
        return full, self.header.metadata.get(full)

    def integer(self, key: str, default: int | None = None, *, least: int = 1, most: int = (1 << 31) - 1) -> int:
        full, value = self._get(key)
        if isinstance(value, np.ndarray):  # one value for each layer
            if value.size and (value == value[0]).all():
                value = value[0].item()
            else:
                raise UnsupportedError(f"{self.header.path}: {full} differs between layers, which no family has")
        value = default if value is None else value
        if type(value) is not int or not least <= value <= most:
            kind = "a positive integer" if least else "an integer from 0"
            kind += f" up to {most}"
            raise BundleError(f"{self.header.path}: {full} must be {kind}, not {shown(value)}")
        return value

    def number(self, key: str, default: float | None = None, *, zero: float | None = None) -> float:
        """Return a positive number. ``zero`` is what 0 stands for; None: 0 is refused."""
        full, value = self._get(key)
        value = default if value is None else value
        if zero is not None and isinstance(value, int | float) and not value:
            return zero
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise BundleError(f"{self.header.path}: {full} must be a positive number, not {shown(value)}")
        return float(value)

    def text(self, key: str, default: str) -> str:
        full, value = self._get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise BundleError(f"{self.header.path}: {full} must be text, not {shown(value)}")
        return value

    def flags(self, key: str, least: int) -> tuple[bool, ...] | None:
        """Return a truth value for each layer, or None if the key is absent; there are at least ``least``."""
        full, value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biu" or value.size < least:
            raise BundleError(f"{self.header.path}: {full} must be {least} truth values, not {shown(value)}")
        return tuple(bool(one) for one in value.tolist())

    def lists(self, key: str) -> bool:
        """Return whether the key has a value for each layer."""
        return isinstance(self._get(key)[1], np.ndarray)

    def only(self, key: str, allowed: Value, why: str) -> None:
        """Check that a key is absent, or has a value that changes nothing.

        Raises:
            UnsupportedError: it has another value.
        """
        full, value = self._get(key)
        if value is not None and (isinstance(value, np.ndarray) or value != allowed):
            raise UnsupportedError(f"{self.header.path}: {full} {shown(value)} is not read: {why}")

    def has(self, key: str) -> bool:
        return self._get(key)[1] is not None

    def tensor(self, name: str) -> bool:
        return name in self.header.tensors

    def note_others(self) -> None:
        """Name the keys in a note that were not asked for, other than the tokenizer's and those of ``GENERAL_KEYS``."""
        known = {*self.asked, *(f"{self.name}.{key}" for key in ARCHITECTURE_KEYS)}
        others = [
            key
            for key in self.header.metadata
            if key not in known
            and not key.startswith("tokenizer.")
            and (key.startswith(_SUGGESTED) or not key.startswith(tuple(GENERAL_KEYS)))
        ]
        _note(self.header, others)


def check_general(header: GgufHeader) -> None:
    """Check that a file holds a model.

    Raises:
        UnsupportedError: it is an adapter, the projector of an image model or another file of llama.cpp.
    """
    kind = header.metadata.get("general.type", "model")
    if kind in _NO_MODELS if isinstance(kind, str) else True:
        raise UnsupportedError(
            f"{header.path}: general.type {shown(kind)} is not a language model; pass the model's file"
        )
    if adapter := [key for key in header.metadata if key.startswith("adapter.")]:
        raise UnsupportedError(f"{header.path}: {adapter[0]} belongs to an adapter; merge it into the model first")


def note_tokenizer_keys(header: GgufHeader, asked: set[str], model: str) -> None:
    """Name the keys of the tokenizer in a note that were not asked for; ``model`` is the kind of the vocabulary.

    A truth value that is false asks for nothing. Chat templates are not the tokenizer's.
    """
    known = {f"tokenizer.ggml.{key}" for key in TOKENIZER_KEYS[model]}
    others = [
        key
        for key, value in header.metadata.items()
        if key.startswith("tokenizer.")
        and key not in asked | known
        and value is not False
        and not key.startswith("tokenizer.chat_template")
    ]
    _note(header, others)


def _note(header: GgufHeader, keys: list[str]) -> None:
    if keys:
        shown_keys = ", ".join(keys[:_MOST_NAMED]) + (
            f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
        )
        log.warning(
            "%s: these keys are left out, as llama.cpp leaves them out for this model: %s", header.path, shown_keys
        )
