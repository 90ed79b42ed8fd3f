"""The application: all routes, the gate in front of them, and the form of their errors."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from edgedec import __version__
from edgedec.errors import EdgedecError
from edgedec.runtime.server.embeddings import embedding_routes
from edgedec.runtime.server.errors import ApiError, ErrorBody, error_body, from_edgedec, from_validation
from edgedec.runtime.server.gate import Gate
from edgedec.runtime.server.generation import generation_routes
from edgedec.runtime.server.inspection import inspection_routes
from edgedec.runtime.server.page import page_routes
from edgedec.runtime.server.request_log import RequestLog, request_record
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.settings import ServerSettings
from edgedec.runtime.server.web import web_routes

__all__ = ["create_app"]

_LOG = logging.getLogger(__name__)


def create_app(service: ModelService, settings: ServerSettings, log: RequestLog | None = None) -> Gate:
    """Return the application of a server, with a log of its requests if there is to be one.

    The pages of FastAPI that show the interface are off, because they load scripts from another site; so are its records for
    telemetry, whatever the environment says.
    """
    app = FastAPI(
        title="edgedec",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        # These stand for every error in the description, where FastAPI would write its own 422 otherwise.
        responses={
            "4XX": {"model": ErrorBody, "description": "the request is wrong, or is not served now"},
            "5XX": {"model": ErrorBody, "description": "the server or its model failed, or is not ready"},
        },
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    app.add_middleware(_UsualForm)
    gates: list[Gate] = []
    app.include_router(generation_routes(service, settings))
    app.include_router(embedding_routes(service, settings))
    app.include_router(inspection_routes(service, settings, gates))
    if settings.has_page:
        app.include_router(page_routes(offers_web=settings.web is not None))
    if settings.web is not None:
        app.include_router(web_routes(settings.web))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        if not isinstance(error, ApiError):
            error = ApiError(error.status_code, f"{error.detail}: {request.method} of this path", headers=error.headers)
        return _answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return _answer(request, from_validation(error))

    @app.exception_handler(EdgedecError)
    async def failed(request: Request, error: EdgedecError) -> JSONResponse:
        return _answer(request, from_edgedec(error))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        _LOG.error("an unexpected error", exc_info=error)
        return _answer(request, ApiError(500, "an unexpected error, see the server's log"))

    gates.append(Gate(app, settings, service.memory, log))
    return gates[0]


class _UsualForm:
    """Middleware that gives requests the form that the routes know.

    HEAD is answered as GET; the HTTP server, which knows the method, leaves the body out. A body that the gate let through
    without a declaration is JSON.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "HEAD":
            scope = {**scope, "method": "GET"}
        elif scope.get("method") == "POST" and all(name != b"content-type" for name, _ in scope["headers"]):
            scope = {**scope, "headers": [*scope["headers"], (b"content-type", b"application/json")]}
        await self._app(scope, receive, send)


def _answer(request: Request, error: ApiError) -> JSONResponse:
    request_record(request.scope).refused(error)
    return JSONResponse(error_body(error, request.url.path), error.status_code, error.headers)
