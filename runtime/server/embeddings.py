"""Embeddings: ``/v1/embeddings`` as OpenAI has it, and ``/embedding``, which is also ``/embeddings``, as llama.cpp has it.

Ollama's ``/api/embed``, and the older ``/api/embeddings`` with one text, are translations of the first.

A text is read in the passes that it shares with texts that are being written, and waits in their queue.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from edgedec.runtime.protocols import F32, I32
from edgedec.runtime.server.errors import ApiError, answer_cancelled, not_supported
from edgedec.runtime.server.json_body import JsonRoute
from edgedec.runtime.server.model_text import ModelFacts
from edgedec.runtime.server.plain_prompts import PromptPieces, plain_encoder, plain_prompts
from edgedec.runtime.server.request_body import RequestBody
from edgedec.runtime.server.request_log import request_record
from edgedec.runtime.server.request_memory import hold_memory
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.settings import ServerSettings
from edgedec.runtime.server.streaming import cancelled_on_disconnect, compact_json
from edgedec.runtime.server.submission import GoneError, TextEnd, TextRequest
from edgedec.runtime.server.translation import own_names
from edgedec.runtime.text_settings import TextSettings

__all__ = ["EmbeddingsRequest", "embedding_routes", "embeddings_json"]

INPUTS = 2048  # texts of one request
_NUMBER = 64  # bytes of a number of an embedding, pooled, as JSON, and in the answer
_Answer = Callable[[Sequence[bytes], int], bytes]  # (embeddings as JSON, tokens of all texts) -> the answer as JSON
_AS_THEY_ARE, _OF_LENGTH_1 = -1, 2  # values of ``embd_normalize``


class EmbeddingsRequest(RequestBody):
    """The body of the endpoints for embeddings, with the names of OpenAI (``input``) or of llama.cpp (``content``).

    A text is spelled as a prompt of ``/completion``: a text, a list of ids, or both in a list.
    """

    input: str | Annotated[list[Any], Field(fail_fast=True)] | None = None
    content: str | Annotated[list[Any], Field(fail_fast=True)] | None = None
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    embd_normalize: int | None = None

    @property
    def texts(self) -> list[PromptPieces]:
        """The texts, each as pieces that follow each other.

        Raises:
            ApiError: there is none, or the field is there under both names, or is wrong.
        """
        if self.input is not None and self.content is not None:
            raise ApiError(400, "input and content are two names of the texts; leave one out", param="content")
        value = self.input if self.content is None else self.content
        if value is None:
            raise ApiError(400, "input: it is missing", param="input")
        return plain_prompts(value, param=self.param, most=INPUTS)

    @property
    def param(self) -> str:
        """The name of the field with the texts."""
        return "input" if self.content is None else "content"

    def check(self, size: int) -> None:
        """Check that embeddings of ``size`` numbers are what the request asks for.

        Raises:
            ApiError: it asks for others.
        """
        if self.dimensions not in (None, size):
            raise not_supported("dimensions", f"the model's embeddings have {size} numbers; leave it out")
        if self.embd_normalize not in (None, _AS_THEY_ARE, _OF_LENGTH_1):
            raise not_supported("embd_normalize", "it must be 2 for vectors of length 1, or -1 for others")

    def shown(self, vector: F32) -> bytes:
        """Return an embedding, float32 [size], as JSON."""
        if self.encoding_format == "base64":
            return b'"%s"' % base64.b64encode(vector.astype("<f4").tobytes())
        return compact_json(vector.tolist())


class OllamaEmbeddings(RequestBody):
    """The members that the bodies of Ollama's two endpoints share. A text is never shortened, so ``truncate`` is named."""

    ignored: ClassVar[frozenset[str]] = frozenset(["truncate", "keep_alive", "options"])
    model: str | None = None


class EmbedBody(OllamaEmbeddings):
    """The body of ``/api/embed``."""

    input: str | Annotated[list[str], Field(fail_fast=True)]
    dimensions: Annotated[int, Field(ge=1)] | None = None


class OneEmbeddingBody(OllamaEmbeddings):
    """The body of ``/api/embeddings``."""

    prompt: str


def embeddings_json(facts: ModelFacts, settings: ServerSettings) -> dict[str, Any] | None:
    """Return what embeddings are made of, for ``/props``; None if the model was loaded without them."""
    if not facts.embedding_size:
        return None
    return {
        "size": facts.embedding_size,
        "layer": facts.embedding_layer,
        "pooling": settings.pooling,
        "embd_normalize": _OF_LENGTH_1,
    }


def embedding_routes(service: ModelService, settings: ServerSettings) -> APIRouter:
    """Return the routes of embeddings."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/embeddings", response_model=None)
    async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
        """Return the embeddings of one or several texts, if the server was started with ``--embeddings``."""
        name = compact_json(settings.model_name)

        def answer(shown: Sequence[bytes], tokens: int) -> bytes:
            items = [b'{"object":"embedding","index":%d,"embedding":%s}' % item for item in enumerate(shown)]
            usage = b'"usage":{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
            return b'{"object":"list","data":[%s],"model":%s,%s}' % (b",".join(items), name, usage)

        return await answered(body, request, answer)

    @router.post("/embedding", response_model=None)
    @router.post("/embeddings", response_model=None, include_in_schema=False)
    async def native_embeddings(body: EmbeddingsRequest, request: Request) -> Response:
        """Return the same as llama.cpp's server does: a list, in which each embedding is a list of one."""

        def answer(shown: Sequence[bytes], tokens: int) -> bytes:
            return b"[%s]" % b",".join(b'{"index":%d,"embedding":[%s]}' % item for item in enumerate(shown))

        return await answered(body, request, answer)

    @router.post("/api/embed", response_model=None)
    async def embed(body: EmbedBody, request: Request) -> Response:
        """Return the embeddings of one or several texts, as Ollama's server does. Times are in nanoseconds."""
        began = time.monotonic_ns()

        def answer(shown: Sequence[bytes], tokens: int) -> bytes:
            figures = {"total_duration": time.monotonic_ns() - began, "load_duration": 0, "prompt_eval_count": tokens}
            head = compact_json({"model": settings.model_name, **figures})
            return b'%s,"embeddings":[%s]}' % (head[:-1], b",".join(shown))

        return await answered(EmbeddingsRequest(input=body.input, dimensions=body.dimensions), request, answer)

    @router.post("/api/embeddings", response_model=None)
    async def one_embedding(body: OneEmbeddingBody, request: Request) -> Response:
        """Return the embedding of one text, as Ollama's older endpoint does."""

        def answer(shown: Sequence[bytes], tokens: int) -> bytes:
            return b'{"embedding":%s}' % shown[0]

        with own_names({"input": "prompt"}):
            return await answered(EmbeddingsRequest(input=body.prompt), request, answer)

    async def answered(body: EmbeddingsRequest, request: Request, answer: _Answer) -> Response:
        encoders = [plain_encoder(service, pieces, param=body.param) for pieces in body.texts]
        async with service.text() as text:
            if not text.embedding_size:
                raise ApiError(
                    400,
                    "the server was started without --embeddings, so the model gives none",
                    code="embeddings_not_supported",
                )
            body.check(text.embedding_size)
            prompts = [await encode(text) for encode in encoders]
            for ids in prompts:
                text.check_fits(ids, param=body.param)
            await hold_memory(_NUMBER * text.embedding_size * len(prompts), "the embeddings")
            try:
                shown = await vectors(body, request, prompts)
            except GoneError:
                return JSONResponse(answer_cancelled().body, 503)
        return Response(answer(shown, sum(map(len, prompts))), media_type="application/json")

    async def vectors(body: EmbeddingsRequest, request: Request, prompts: Sequence[I32]) -> list[bytes]:
        """Return the embeddings of texts as JSON. As many wait or are read at a time as texts can be written."""
        shown, together = list[bytes](), max(1, min(service.slots, service.queue_limit))
        for start in range(0, len(prompts), together):
            submission = service.submit(
                [
                    TextRequest(prompt=ids, text=TextSettings(n_predict=0), pooling=settings.pooling)
                    for ids in prompts[start : start + together]
                ]
            )
            request_record(request.scope).submissions.append(submission)
            found = dict[int, bytes]()
            async with cancelled_on_disconnect(request.receive, submission):
                while not submission.ended:
                    event = await submission.next()
                    if isinstance(event, TextEnd) and event.pooled is not None:
                        vector = event.pooled.vector(normalize=body.embd_normalize != _AS_THEY_ARE)
                        found[event.index] = body.shown(vector)
            shown += [found[number] for number in range(len(found))]
        return shown

    return router
