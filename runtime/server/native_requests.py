"""The body of ``/completion``, llama.cpp's own endpoint for plain texts."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from edgedec.runtime.server.plain_prompts import PromptPieces, has_ids, plain_prompts
from edgedec.runtime.server.requests import PROMPTS, TOP_LOGPROBS
from edgedec.runtime.server.text_options import TextOptionsRequest

__all__ = ["NativeCompletionRequest"]

FIELDS = 64  # entries of response_fields


class NativeCompletionRequest(TextOptionsRequest):
    """The body of ``/completion``.

    A prompt is a text, an object with ``prompt_string``, or a list of ids and texts with at least one id. A list without ids
    holds several prompts.
    """

    unsupported: ClassVar[dict[str, str]] = {
        "input_prefix": "ask /infill for a text in a gap; leave it out",
        "input_suffix": "ask /infill for a text in a gap; leave it out",
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
        return plain_prompts(self.prompt, param="prompt", most=PROMPTS)

    @property
    def is_list(self) -> bool:
        """True if the answer is a list of objects."""
        return len(self.prompts) * self.choices > 1 or (isinstance(self.prompt, list) and not has_ids(self.prompt))
