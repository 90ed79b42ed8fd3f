"""Plain prompts of requests, in the forms that llama.cpp's server takes, and their ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from edgedec.runtime.protocols import I32
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.server.request_memory import text_bytes
from edgedec.runtime.server.service import ModelService

__all__ = ["Encoder", "PromptPieces", "has_ids", "plain_encoder", "plain_prompts"]

PromptPieces = list[str | list[int]]  # texts and ids, which follow each other
Encoder = Callable[[ModelText], Awaitable[I32]]  # returns the ids of a prompt, int32 [n]
_TEXT, _MEDIA = "prompt_string", "multimodal_data"


def plain_prompts(value: Any, *, param: str, most: int) -> list[PromptPieces]:
    """Return the prompts of a field's value, each as pieces that follow each other.

    A prompt is a text, an object with ``prompt_string``, or a list of ids and texts with at least one id. A list without ids
    holds several prompts, at most ``most``.

    Raises:
        ApiError: there is none, there are too many, or one has another type; ``param`` is the field to blame.
    """
    if not isinstance(value, list) or has_ids(value):
        return [_pieces(value, param)]
    if not 0 < len(value) <= most:
        raise ApiError(400, f"{param}: a list must have 1 to {most} prompts", param=param)
    return [_pieces(prompt, param) for prompt in value]


def has_ids(value: Sequence[Any]) -> bool:
    """Return whether a list holds an id, so that it is one prompt."""
    return any(_is_id(item) for item in value)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _pieces(prompt: Any, param: str) -> PromptPieces:
    """Return a prompt's pieces: neighbouring ids are one piece."""
    if isinstance(prompt, dict):
        if prompt.get(_MEDIA):
            raise ApiError(400, f"{param}: {_MEDIA} needs a model for pictures", param=param)
        if set(prompt) - {_TEXT, _MEDIA} or not isinstance(prompt.get(_TEXT), str):
            raise ApiError(400, f"{param}: an object must have the text {_TEXT}", param=param)
        return [prompt[_TEXT]]
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise ApiError(400, f"{param}: it must be a text, a list of ids, or a list of such prompts", param=param)
    pieces: PromptPieces = []
    for item in prompt:
        if isinstance(item, str):
            pieces.append(item)
        elif not _is_id(item):
            raise ApiError(400, f"{param}: a list within a prompt must hold ids and texts", param=param)
        elif pieces and isinstance(pieces[-1], list):
            pieces[-1].append(item)
        else:
            pieces.append([item])
    return pieces


def plain_encoder(service: ModelService, prompt: PromptPieces, *, param: str) -> Encoder:
    """Return a function that returns the ids of a plain prompt.

    It raises ApiError if the prompt is empty, an id is not one of the model's, or a text is far too long.
    """
    nbytes = max((text_bytes(piece) for piece in prompt if isinstance(piece, str)), default=0)

    async def encode(text: ModelText) -> I32:
        for piece in prompt:
            if isinstance(piece, str):
                text.check_length(piece, param)  # before there is talk of memory
        return await service.side_work.convert(nbytes, _joined_ids, text, prompt, param)

    return encode


def _joined_ids(text: ModelText, prompt: PromptPieces, param: str) -> I32:
    """Return the ids of a prompt in pieces; only the first piece, if it is a text, gets the tokens that begin a text."""
    parts = list[I32]()
    for number, piece in enumerate(prompt or [[]]):
        if not isinstance(piece, str):
            parts.append(text.check_ids(piece, param=param))
        elif number:
            parts.append(text.tokenize(piece, add_special=False, param=param))
        else:
            parts.append(text.encode(piece, param=param))
    return np.concatenate(parts).astype(np.int32)
