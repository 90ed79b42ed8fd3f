"""The page of the server: one file, which loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from fastapi import APIRouter, Response

__all__ = ["page_routes"]

_HIDDEN_LINK = '<a id="web" href="web/" hidden>'
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def page_routes(*, offers_web: bool = False) -> APIRouter:
    """Return the route of the page; ``offers_web`` shows the link to the model in the browser.

    A browser runs the page's own script and style only, whose hashes the header names, and lets the page connect to this
    server only.
    """
    page = files("edgedec.runtime.server.page").joinpath("index.html").read_text("utf-8")
    if offers_web:
        page = page.replace(_HIDDEN_LINK, _HIDDEN_LINK.replace(" hidden", ""))
    hashes = {name: base64.b64encode(hashlib.sha256(text.encode()).digest()) for name, text in _INLINE.findall(page)}
    rules = "; ".join(f"{name}-src 'sha256-{digest.decode()}'" for name, digest in sorted(hashes.items()))
    policy = (
        f"default-src 'none'; {rules}; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def index() -> Response:
        """Return the page."""
        return Response(page, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": policy})

    return router
