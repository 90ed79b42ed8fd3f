"""The body of ``/completion``, llama.cpp's own endpoint for plain texts."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.requests import PROMPTS, TOP_LOGPROBS, PromptPieces
from edgedec.runtime.server.text_options import TextOptionsRequest

__all__ = ["NativeCompletionRequest"]

FIELDS = 64  # entries of response_fields
_PROMPT_TEXT, _PROMPT_MEDIA = "prompt_string", "multimodal_data"


class NativeCompletionRequest(TextOptionsRequest):
    """The body of ``/completion``.

    A prompt is a text, an object with ``prompt_string``, or a list of ids and texts with at least one id. A list without ids
    holds several prompts.
    """

    unsupported: ClassVar[dict[str, str]] = {
        "input_prefix": "the server continues texts and does not fill gaps; leave it out",
        "input_suffix": "the server continues texts and does not fill gaps; leave it out",
        "lora": "the server has no adapters; leave it out",
    }
    prompt: str | dict[str, Any] | Annotated[list[Any], Field(fail_fast=True)]
    n_probs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[list[str], Field(max_length=FIELDS, fail_fast=True)] | None = None

    @property
    def top(self) -> int | None:
        """Number of likeliest tokens to report with each token; None: no probabilities."""
        return self.n_probs or None

    @property
    def prompts(self) -> list[PromptPieces]:
        """The prompts, each as pieces that follow each other.

        Raises:
            ApiError: there is none, there are too many, or one has another type.
        """
        if not isinstance(self.prompt, list) or any(_is_id(item) for item in self.prompt):
            return [_pieces(self.prompt)]
        if not 0 < len(self.prompt) <= PROMPTS:
            raise ApiError(400, f"prompt: a list must have 1 to {PROMPTS} prompts", param="prompt")
        return [_pieces(prompt) for prompt in self.prompt]

    @property
    def is_list(self) -> bool:
        """True if the answer is a list of objects."""
        return len(self.prompts) * self.choices > 1 or (
            isinstance(self.prompt, list) and not any(_is_id(item) for item in self.prompt)
        )


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _pieces(prompt: Any) -> PromptPieces:
    """Return a prompt's pieces: neighbouring ids are one piece."""
    if isinstance(prompt, dict):
        if prompt.get(_PROMPT_MEDIA):
            raise ApiError(400, f"prompt: {_PROMPT_MEDIA} needs a model for pictures", param="prompt")
        if set(prompt) - {_PROMPT_TEXT, _PROMPT_MEDIA} or not isinstance(prompt.get(_PROMPT_TEXT), str):
            raise ApiError(400, f"prompt: an object must have the text {_PROMPT_TEXT}", param="prompt")
        return [prompt[_PROMPT_TEXT]]
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise ApiError(400, "prompt: it must be a text, a list of ids, or a list of such prompts", param="prompt")
    pieces: PromptPieces = []
    for item in prompt:
        if isinstance(item, str):
            pieces.append(item)
        elif not _is_id(item):
            raise ApiError(400, "prompt: a list within a prompt must hold ids and texts", param="prompt")
        elif pieces and isinstance(pieces[-1], list):
            pieces[-1].append(item)
        else:
            pieces.append([item])
    return pieces
