"""The JSON of a request's body, read with limits.

Python's parser accepts more than JSON (``NaN``) and takes work that no request needs (deep nesting, numbers of thousands of
digits). Such a body is refused here with a message, before any value of it is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import numpy as np
from fastapi import Request, Response
from fastapi.routing import APIRoute

from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.ignored_fields import collected, ignored_header
from edgedec.runtime.server.request_memory import REQUEST_MEMORY

__all__ = ["DEPTH_LIMIT", "JsonRoute", "parse_json", "structure"]

DEPTH_LIMIT = 64  # levels of arrays and objects within each other
_PART_BYTES = 1 << 16  # bytes that are looked at together
_BACKSLASHES = (rb"\\", rb"\u005c", rb"\u005C")  # spellings of one in the text of a body


def structure(body: bytes) -> tuple[int, int]:
    """Return what JSON text holds: how many arrays and objects are open at once, at most, and how many values there are.

    Brackets and commas in strings do not count. The work is linear and takes some 600 KiB, whatever the text is. For
    ``{"a": [1, 2]}`` the result is (2, 3): the object, the array and the first value of each come with a bracket.
    """
    depth = most = values = start = 0
    quoted = np.uint8(0)
    while start < len(body):
        part = body[start : start + _PART_BYTES]
        # A backslash at the end of a part escapes the first byte after it.
        start += len(part) + (len(part) - len(part.rstrip(b"\\"))) % 2
        text = np.frombuffer(part.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
        in_string = (
            np.cumsum(text == ord('"'), dtype=np.uint8) + quoted
        ) & 1  # the count wraps and keeps its lowest bit
        outside = in_string == 0
        opened = outside & ((text == ord("[")) | (text == ord("{")))
        closed = outside & ((text == ord("]")) | (text == ord("}")))
        levels = np.cumsum(opened.astype(np.int8) - closed.astype(np.int8), dtype=np.int32) + depth
        values += int(np.count_nonzero(opened)) + int(np.count_nonzero(outside & (text == ord(","))))
        if len(text):
            most, depth, quoted = max(most, int(levels.max())), int(levels[-1]), in_string[-1]
    return most, values


def parse_json(body: bytes) -> Any:
    """Return the value of a body.

    Raises:
        ApiError: the body is not JSON in UTF-8, is nested too deeply, or has a number or a string that is none; the status
            is 400. Or there is no memory for its values: 413 or 429.
    """
    depth, values = structure(body)
    if depth > DEPTH_LIMIT:
        raise ApiError(
            400, f"the body nests {depth} arrays and objects, at most {DEPTH_LIMIT} are accepted", code="json_too_deep"
        )
    if (memory := REQUEST_MEMORY.get()) is not None:
        memory.hold_values(values, escapes=sum(map(body.count, _BACKSLASHES)))
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
        if b"\\u" in body:  # the only way to write half of a character
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8 at byte {error.start}", code="json_invalid") from error
    except UnicodeEncodeError as error:
        raise ApiError(
            400, "a text of the body has a lone surrogate, which is no character", code="json_invalid"
        ) from error
    except json.JSONDecodeError as error:
        raise ApiError(
            400, f"the body is not JSON at character {error.pos}: {error.msg}", code="json_invalid"
        ) from error
    except ValueError as error:  # a number with too many digits
        raise ApiError(400, f"the body has a number that is not accepted: {error}", code="json_invalid") from error
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class _JsonRequest(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json


class JsonRoute(APIRoute):
    """A route whose bodies are read by ``parse_json``, and whose responses name what was ignored in them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            with collected() as names:
                response = await handle(_JsonRequest(request.scope, request.receive))
                response.headers.update(ignored_header(names))
                return response

        return handle_json
