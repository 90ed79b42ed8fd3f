"""The route of a site that ``edgedec export --format web`` wrote: the model in the user's browser, beside the server's."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

from edgedec.errors import UsageError
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.web.manifest import is_site

__all__ = ["WEB_PATH", "check_site", "web_routes"]

WEB_PATH = "/web/"
_TYPES = {
    ".bin": "application/octet-stream",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".jinja": "text/plain; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
# The page's own policy is stricter. With the one that every response has, a browser would refuse its empty icon.
_HEADERS = {"Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'"}


def check_site(folder: Path) -> None:
    """Check that a folder holds a site.

    Raises:
        UsageError: it does not.
    """
    if not is_site(folder):
        raise UsageError(
            f"--web {folder}: holds no site; make one with: edgedec export BUNDLE --format web -o {folder}"
        )


def web_routes(folder: Path) -> APIRouter:
    """Return the route of the files of a site.

    The files are those that are in the folder now, so that no path leads out of it.
    """
    files = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path.suffix in _TYPES
    }
    router = APIRouter()

    @router.get(f"{WEB_PATH}{{name:path}}", include_in_schema=False)
    async def file(name: str) -> FileResponse:
        """Return a file of the site."""
        path = files.get(name or "index.html")
        if path is None:
            raise ApiError(404, f"the site has no file {name!r}", code="not_found")
        return FileResponse(path, media_type=_TYPES[path.suffix], headers=_HEADERS)

    return router
