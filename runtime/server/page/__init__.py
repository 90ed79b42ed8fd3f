"""The page of the server: a document, a style and the modules of its script, which load nothing from elsewhere."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Header, Response

from edgedec.digests import sha256

__all__ = ["PAGE_PATHS", "page_routes"]

_HIDDEN_LINK = '<a id="web" href="web/" hidden>'
_INDEX = "index.html"
_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_MODULES = (
    "chats",
    "conversation",
    "inline",
    "markdown",
    "messages",
    "options",
    "page",
    "panels",
    "server",
    "store",
    "view",
)
# Path -> file.
PAGE_PATHS = {"/": _INDEX} | {f"/page/{name}": name for name in ("page.css", *(f"{one}.js" for one in _MODULES))}
# No text becomes a script or an element: browsers that know trusted types refuse to read a text as HTML.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


def page_routes(*, offers_web: bool = False) -> APIRouter:
    """Return the routes of the page's files, ``PAGE_PATHS``; ``offers_web`` shows the link to the model in the browser.

    A browser runs scripts of this server only, and lets the page connect to this server only. It keeps the files, and asks
    each time if they have changed (``ETag``).
    """
    router, folder = APIRouter(), files("edgedec.runtime.server.page")
    for path, name in PAGE_PATHS.items():
        text = folder.joinpath(name).read_text("utf-8")
        if name == _INDEX and offers_web:
            text = text.replace(_HIDDEN_LINK, _HIDDEN_LINK.replace(" hidden", ""))
        _add_file(router, path, text.encode(), _TYPES[name.rpartition(".")[2]])
    return router


def _add_file(router: APIRouter, path: str, content: bytes, media_type: str) -> None:
    tag = f'"{sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Security-Policy": _POLICY}

    @router.get(path, include_in_schema=False)
    async def file(if_none_match: Annotated[str, Header()] = "") -> Response:
        """Return a file of the page, or status 304 to a browser that has it."""
        known = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
        if tag in known or known == ["*"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)
