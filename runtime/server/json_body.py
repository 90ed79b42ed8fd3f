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

__all__ = ["DEPTH_LIMIT", "JsonRoute", "nesting", "parse_json"]

DEPTH_LIMIT = 64  # levels of arrays and objects within each other


def nesting(body: bytes) -> int:
    """Return the number of arrays and objects that are open at once, at most, in JSON text.

    Brackets in strings do not count. The work is linear, whatever the text is.
    """
    text = np.frombuffer(body.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    in_string = np.cumsum(text == ord('"'), dtype=np.uint8) & 1  # the count wraps, which keeps its lowest bit
    steps = np.zeros(len(text), np.int8)
    steps[(text == ord("[")) | (text == ord("{"))] = 1
    steps[(text == ord("]")) | (text == ord("}"))] = -1
    steps[in_string == 1] = 0
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


def parse_json(body: bytes) -> Any:
    """Return the value of a body.

    Raises:
        ApiError: the body is not JSON in UTF-8, is nested too deeply, or has a number or a string that is none; the status
            is 400.
    """
    if (depth := nesting(body)) > DEPTH_LIMIT:
        raise ApiError(
            400, f"the body nests {depth} arrays and objects, at most {DEPTH_LIMIT} are accepted", code="json_too_deep"
        )
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
