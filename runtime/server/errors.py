"""Errors of the HTTP interface, in the shape that OpenAI's clients expect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict

from edgedec.errors import EdgedecError, UsageError
from edgedec.memory import format_bytes
from edgedec.runtime.engine.ledger import AdmissionError

__all__ = [
    "ApiError",
    "ErrorBody",
    "context_overflow",
    "from_edgedec",
    "from_validation",
    "not_supported",
    "short_of_memory",
    "switched_off",
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
# Names of fields, and not of types (``str``, ``constrained-int``, ``NamedTool``, ``list[int]``).
_NAME = re.compile(r"(?!(str|int|float|bool|list|dict)$)[a-z_]+")
_SERVER_ERROR = "server_error"


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


def from_validation(error: RequestValidationError) -> ApiError:
    """Return the error of the interface for the first value of a request that does not fit its model.

    The message names the field and the rule, and never the value, which may be long or secret.
    """
    first = error.errors()[0]
    # Behind the name of a type, the place is that of a rule and no longer that of a value.
    values = takewhile(lambda part: isinstance(part, int) or _NAME.fullmatch(part), first["loc"][1:])
    param = ".".join(map(str, values)) or None
    message = str(first["msg"])
    return ApiError(400, f"{param}: {message}" if param else f"the body: {message}", param=param, code=first["type"])
