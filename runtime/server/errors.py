"""Errors of the HTTP interface, in the shapes that the clients of each endpoint expect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict

from edgedec.errors import EdgedecError, UsageError
from edgedec.memory.byte_sizes import format_bytes
from edgedec.runtime.engine.ledger import AdmissionError

__all__ = [
    "ApiError",
    "ErrorBody",
    "ShortMemoryError",
    "answer_cancelled",
    "anthropic_error",
    "context_overflow",
    "error_body",
    "from_edgedec",
    "from_validation",
    "invalid_value",
    "late_grammar",
    "model_not_loaded",
    "not_supported",
    "server_ending",
    "short_of_memory",
    "switched_off",
    "too_large_for_memory",
    "too_many_grammars",
]

# The value of ``type`` for each status.
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
_SERVER_ERROR = "server_error"
# Anthropic's names of errors, where they differ. Its clients know no other name for a status.
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    500: "api_error",
    501: "invalid_request_error",
    503: "overloaded_error",
}
_NAME_CHARACTERS = 64  # characters of a part of a field's name in a message
# A word that is the name of a field wherever it stands, and no part of a text or of a place in a schema.
_FIELD = re.compile(r"""(?<![\w/'"#.-])[a-z]+(?:_[a-z]+)+(?![\w/'"-])""")
_WORDS = 4  # rules of a union that a message names at most


class ErrorMembers(BaseModel):
    """Members that every error has. Some have further ones."""

    model_config = ConfigDict(extra="allow")

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error, for the description of the interface."""

    error: ErrorMembers


class ApiError(HTTPException):
    """An error that is answered with a status and a JSON object.

    Parameters:
        status: the HTTP status.
        message: text for the person who reads it, with the limit and the next step.
        param: name of the field that is wrong; None if the error is not about one field.
        code: short name of the error for programs; None if there is none.
        kind: the value of ``type``; None derives it from the status.
        headers: further headers of the response.
        **members: further members of the error object.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(status, message, headers)
        self.message = message
        self.error = {
            "message": message,
            "type": kind or _TYPES.get(status, _SERVER_ERROR),
            "param": param,
            "code": code,
            **members,
        }

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object of the response."""
        return {"error": self.error}

    def renamed(self, names: Mapping[str, str]) -> ApiError:
        """Return the error with other names of fields, in ``param`` and in the message.

        Parameters:
            names: the other name of each field, or of a place within one. A name with a full stop at its end stands for all
                places within it, which have no counterpart: the message then keeps the place.
        """
        place, message = self.error["param"], self.message
        param = place
        for old in sorted(names, key=len) if place is not None else ():  # the longest one that fits is the last
            if old.endswith(".") and place.startswith(old):
                param, message = names[old], f"{names[old]}: in the chat that it becomes, {self.message}"
            elif f"{place}.".startswith(f"{old}."):
                param = names[old] + place.removeprefix(old)
                is_named = self.message.startswith(f"{place}: ")
                message = param + self.message.removeprefix(place) if is_named else self.message
        message = _FIELD.sub(lambda field: names.get(field[0], field[0]), message)
        members = {
            name: value for name, value in self.error.items() if name not in ("message", "type", "param", "code")
        }
        return ApiError(
            self.status_code,
            message,
            param=param,
            code=self.error["code"],
            kind=self.error["type"],
            headers=self.headers,
            **members,
        )


class ShortMemoryError(ApiError):
    """There is no memory for a part of a request now; there will be when others have ended.

    Parameters:
        message: text that says what is short, and the next step.
    """

    def __init__(self, message: str) -> None:
        super().__init__(429, f"memory is short: {message}", code="memory_short", headers={"Retry-After": "1"})


def short_of_memory(error: AdmissionError, retry_seconds: int, *, texts: int = 1, lexer_bytes: int = 0) -> ApiError:
    """Return the error for a request that has no room in the memory now, or never.

    Args:
        texts: number of texts for which the server keeps room at a time.
        lexer_bytes: the part of the request for the states of its grammar's lexer.
    """
    if error.never:
        grammar = ""
        if lexer_bytes:
            grammar = f" ({format_bytes(lexer_bytes)} of it for a grammar: one without regular expressions needs less)"
        fewer = f"fewer texts at a time (-np, now {texts}), " if texts > 1 else ""
        return ApiError(
            400,
            f"the request may take more than the memory budget: {error}{grammar}; or start the server with {fewer}"
            "a smaller --ctx-size or a larger --memory-budget",
            code="memory_budget_exceeded",
        )
    return ApiError(429, f"memory is short: {error}", code="memory_short", headers={"Retry-After": str(retry_seconds)})


def too_many_grammars(limit: int) -> ApiError:
    """Return the error for a client of whom ``limit`` grammars wait to be made."""
    return ApiError(
        429,
        f"{limit} grammars of this client wait to be made; try again later",
        code="too_many_grammars",
        headers={"Retry-After": "1"},
    )


def late_grammar(seconds: float) -> ApiError:
    """Return the error for a grammar that was not made within ``seconds``, with those before it."""
    return ApiError(
        503,
        f"the grammar was not ready within {seconds:g} seconds; try again later, or send a smaller schema",
        code="grammar_timeout",
        headers={"Retry-After": "5"},
    )


def too_large_for_memory(error: AdmissionError, what: str, *, code: str) -> ApiError:
    """Return the error for a part of a request, ``what``, for which the memory budget never has room."""
    return ApiError(
        413,
        f"{what} is too large for the memory budget: {error}; or start the server with a larger --memory-budget",
        code=code,
    )


def server_ending() -> ApiError:
    """Return the error for a request that the server does not answer any more because it ends."""
    headers = {"Retry-After": "5"}
    return ApiError(503, "the server is ending; ask another one", code="shutting_down", headers=headers)


def answer_cancelled() -> ApiError:
    """Return the error for an answer whose client has left, which usually nobody reads."""
    return ApiError(503, "the answer was cancelled", code="cancelled")


def model_not_loaded(error: BaseException) -> ApiError:
    """Return the error for a request whose model cannot be loaded, or whose thread has failed."""
    reason = str(error) if isinstance(error, EdgedecError) else "an unexpected error, see the server's log"
    return ApiError(503, f"the model cannot be loaded: {reason}", code="model_not_loaded")


def not_supported(param: str, reason: str) -> ApiError:
    """Return the error for a field that this server knows and does not support."""
    return ApiError(400, f"{param}: {reason}", param=param, code="unsupported_parameter")


def switched_off(endpoint: str, option: str) -> ApiError:
    """Return the error for an endpoint that an option of the server switches off."""
    return ApiError(501, f"the server was started with {option}, so {endpoint} is off", code="endpoint_off")


def context_overflow(tokens: int, context: int, *, param: str, exact: bool = True) -> ApiError:
    """Return the error for a prompt that does not fit the context.

    Parameters:
        tokens: tokens of the prompt.
        context: size of the context in tokens.
        param: name of the field with the prompt.
        exact: False if ``tokens`` is a lower bound, because the text was too long to be tokenized.
    """
    return ApiError(
        400,
        f"the request ({'' if exact else 'at least '}{tokens} tokens) exceeds the available context size ({context} "
        "tokens); shorten it, or start the server with a larger --ctx-size",
        param=param,
        code="context_length_exceeded",
        kind="exceed_context_size_error",
        n_prompt_tokens=tokens,
        n_ctx=context,
    )


def from_edgedec(error: EdgedecError, *, param: str | None = None) -> ApiError:
    """Return the error of the interface for an error of edgedec: 400 if the request is wrong, else 500."""
    if isinstance(error, UsageError):
        return ApiError(400, str(error), param=param)
    return ApiError(500, str(error))


def error_body(error: ApiError, path: str) -> dict[str, Any]:
    """Return the JSON object of an error, in the shape that the clients of an endpoint expect.

    Parameters:
        error: the error.
        path: the path of the request.
    """
    if path.startswith("/v1/messages"):
        return anthropic_error(error)
    return {"error": error.message} if path.startswith("/api/") else error.body


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """Return the JSON object of an error as Anthropic's clients expect it, with the members of our own errors."""
    status, message = error.status_code, error.message
    if error.error["code"] == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # the words by which clients know that they must shorten it
    kind = _ANTHROPIC_TYPES.get(status, error.error["type"])
    return {"type": "error", "error": {**error.error, "type": kind, "message": message}}


def from_validation(error: RequestValidationError) -> ApiError:
    """Return the error of the interface for the first value of a body that does not fit its model."""
    return invalid_value(error.errors(), error.body, skip=1)


def invalid_value(errors: Iterable[Mapping[str, Any]], body: Any, *, skip: int = 0) -> ApiError:
    """Return the error of the interface for the first value of a body that pydantic does not take.

    The message names the field and the rule, and never the value, which may be long or secret. Where a value may have one of
    several types, pydantic tries all and tells what each of them lacks. The one that fits best, so the one that is meant,
    fails by something else than a wrong type, or else at the deepest place; if several fail there, the message has the rules
    of all.

    Parameters:
        errors: pydantic's errors, at least one.
        body: the body.
        skip: number of leading parts of places that are none of the body.
    """
    found = [(one, one["loc"][skip:]) for one in errors]
    first, loc = found[0]
    union = next((at for at in range(len(loc)) if not _is_part(loc[: at + 1], body)), len(loc))
    if union == len(loc) or (first["type"] == "missing" and union == len(loc) - 1):
        rules, place = [first], _place(loc, body, first)
    else:
        tried = [pair for pair in found if pair[1][:union] == loc[:union]]
        tried = [pair for pair in tried if not _is_other_type(pair[0])] or tried
        places = [_place(where, body, one) for one, where in tried]
        place = max(places, key=len)
        rules = [one for (one, _), at in zip(tried, places, strict=True) if at == place]
    words = list(dict.fromkeys(str(one["msg"]).removeprefix("Value error, ") for one in rules))
    if len(words) > 1:
        words = [words[0], *(word.removeprefix("Input should be ") for word in words[1:])]
    message = " or ".join(words[:_WORDS])
    param = ".".join(str(part)[:_NAME_CHARACTERS] for part in place) or None
    return ApiError(400, f"{param}: {message}" if param else f"the body: {message}", param=param, code=rules[0]["type"])


def _is_other_type(error: Mapping[str, Any]) -> bool:
    kind = str(error["type"])
    return kind.endswith("_type") or kind == "literal_error"


_NOTHING = object()


def _inner(value: Any, part: str | int) -> Any:
    """Return the value under a key or an index; ``_NOTHING`` if there is none."""
    if isinstance(value, dict):
        return value.get(part, _NOTHING)
    return value[part] if isinstance(value, list) and isinstance(part, int) and part < len(value) else _NOTHING


def _is_part(loc: Sequence[str | int], body: Any) -> bool:
    """Return True if all parts of a place are keys and indices of a body, and none is the name of a type."""
    for part in loc:
        body = _inner(body, part)
    return body is not _NOTHING


def _place(loc: Sequence[str | int], body: Any, error: Mapping[str, Any]) -> tuple[str | int, ...]:
    """Return the place of a value in a body, without the names of types that pydantic puts between."""
    place: list[str | int] = []
    for number, part in enumerate(loc):
        inner = _inner(body, part)
        if inner is not _NOTHING:
            body = inner
            place.append(part)
        elif error["type"] == "missing" and number == len(loc) - 1:
            place.append(part)  # the name of a value that is not there
    return tuple(place)
