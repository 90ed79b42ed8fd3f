"""Texts that fill a gap: ``/infill`` as llama.cpp has it, and ``suffix`` of ``/v1/completions``.

Models that were trained for this have tokens for the text before the gap, for that after it, and for what fills it; some
have tokens for the files of a repository as well. The prompt is

    [repository]myproject [file]NAME text ... [file]filename [prefix]text [suffix]text [middle]

where the parts up to ``[prefix]`` are there if the request has further files and the model the tokens.

Source: Fill in the Middle, 2207.14255; the files of a repository, Qwen2.5-Coder, 2409.12186; names of tokens and files,
llama.cpp ``src/llama-vocab.cpp`` and ``tools/server``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, field_validator

from edgedec.runtime.protocols import I32
from edgedec.runtime.server.errors import ApiError, not_supported
from edgedec.runtime.server.ignored_fields import note_ignored
from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.server.native_requests import NativeCompletionRequest
from edgedec.runtime.server.plain_prompts import Encoder, PromptPieces
from edgedec.runtime.server.request_body import RequestBody
from edgedec.runtime.server.request_memory import text_bytes
from edgedec.runtime.server.service import ModelService

__all__ = ["InfillRequest", "gap_encoder", "gap_ends", "infill_encoder"]

FILES = 256  # further files of a request
_GAP = (  # tokens before the prefix, before the suffix, and before the text that fills the gap, of one model each
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),
)
_REPOSITORY = ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")
_FILE = ("<|file_sep|>",)
_PADDING = ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>")
_ENDS = (*_PADDING, *_REPOSITORY, *_FILE, "<EOT>", "▁<EOT>", "<|endoftext|>")  # a text in a gap ends with any of them
_NO_TOKENS = "the model's vocabulary has no tokens that mark a gap, such as <|fim_prefix|>"
_PARTED = "\n\n--- snip ---\n\n"  # before a further file, if the model has no token for it


class ExtraFile(RequestBody):
    """A further file, which the text may refer to."""

    ignored: ClassVar[frozenset[str]] = frozenset(["time"])
    text: str
    filename: str = "tmp"


class InfillRequest(NativeCompletionRequest):
    """The body of ``/infill``. ``prompt`` is the beginning of what fills the gap."""

    unsupported: ClassVar[dict[str, str]] = {"lora": NativeCompletionRequest.unsupported["lora"]}
    # Editors send them with each request: bounds in time, and how far the first line is indented.
    ignored: ClassVar[frozenset[str]] = NativeCompletionRequest.ignored | {
        *("t_max_prompt_ms", "t_max_predict_ms", "n_indent"),
    }
    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Field(max_length=FILES, fail_fast=True)] | None = None
    prompt: str = ""

    @field_validator("samplers")
    @classmethod
    def _usual_samplers(cls, samplers: str | list[str] | None) -> str | list[str] | None:
        """Return None for the steps of editors, with ``infill``, which the server lacks; its own then apply."""
        if isinstance(samplers, list) and "infill" in samplers:
            note_ignored("samplers")
            return None
        return samplers

    @property
    def prompts(self) -> list[PromptPieces]:
        """The text before the gap."""
        return [[self.input_prefix + self.prompt]]

    @property
    def fills_gap(self) -> bool:
        """True: it does."""
        return True


@dataclass(frozen=True, kw_only=True)
class _Gap:
    """The texts round a gap."""

    prefix: PromptPieces
    suffix: str
    files: tuple[ExtraFile, ...] = ()
    param: str  # field to blame if they do not fit

    @property
    def nbytes(self) -> int:
        """Bytes that the conversion to ids takes at most."""
        pieces = [piece for piece in self.prefix if isinstance(piece, str)]
        files = [part for file in self.files for part in (file.filename, file.text)]
        return max(map(text_bytes, [*pieces, self.suffix, *files]))  # one after the other


def infill_encoder(service: ModelService, body: InfillRequest) -> Encoder:
    """Return a function that returns the ids of the prompt of ``/infill``; it raises ApiError (501) without the tokens."""
    missing = ApiError(501, f"Infill is not supported by this model: {_NO_TOKENS}", code="infill_not_supported")
    files = tuple(body.input_extra or ())
    (prefix,) = body.prompts
    return _encoder(service, _Gap(prefix=prefix, suffix=body.input_suffix, files=files, param="input_prefix"), missing)


def gap_encoder(service: ModelService, prefix: PromptPieces, suffix: str) -> Encoder:
    """Return a function that returns the ids of a prompt with a ``suffix``; it raises ApiError (400) without the tokens."""
    missing = not_supported("suffix", f"{_NO_TOKENS}; leave it out")
    return _encoder(service, _Gap(prefix=prefix, suffix=suffix, param="prompt"), missing)


def _encoder(service: ModelService, gap: _Gap, missing: ApiError) -> Encoder:
    async def encode(text: ModelText) -> I32:
        marks = _marks(text)
        if marks is None:
            raise missing
        return await service.side_work.convert(gap.nbytes, _gap_ids, text, gap, marks)

    return encode


def gap_ends(text: ModelText) -> tuple[int, ...]:
    """Return the ids that end a text in a gap, besides those that end every text."""
    ids = [text.id_of(name) for name in _ENDS]
    return tuple(token for token in ids if token is not None)


def _marks(text: ModelText) -> tuple[int, ...] | None:
    """Return the ids before the prefix, the suffix and the text in the gap; None if the model has none."""
    for names in _GAP:
        ids = [token for name in names if (token := text.id_of(name)) is not None]
        if len(ids) == len(names):
            return tuple(ids)
    return None


def _gap_ids(text: ModelText, gap: _Gap, marks: tuple[int, ...]) -> I32:
    before, after, middle = marks

    def ids(part: str) -> list[int]:
        found: list[int] = text.encode_within(part, param=gap.param).tolist()
        return found

    repository, separator = (_first_of(text, names) for names in (_REPOSITORY, _FILE))
    found = list(text.first_ids)
    if gap.files and repository is not None:
        found += [repository, *ids("myproject\n")]
    for file in gap.files:
        found += ids(_PARTED) if separator is None else [separator, *ids(file.filename + "\n")]
        found += ids(file.text)
    if gap.files and separator is not None:
        found += [separator, *ids("filename\n")]
    found.append(before)
    for piece in gap.prefix:
        found += ids(piece) if isinstance(piece, str) else text.check_ids(piece, param=gap.param).tolist()
    found += [after, *ids(gap.suffix), middle]
    return np.array(found, np.int32)


def _first_of(text: ModelText, names: tuple[str, ...]) -> int | None:
    return next((token for name in names if (token := text.id_of(name)) is not None), None)
