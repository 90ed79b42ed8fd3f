"""The fields of a request that the server takes and does not follow, and the header of the response that names them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["HEADER", "collected", "ignored_header", "note_ignored"]

HEADER = "X-Edgedec-Ignored"
_CHARACTERS = 1000  # maximum number of characters of the header
_UNSAFE = re.compile(r"[^!-+\--:<-~]")  # blanks, what is not ASCII, and the comma and semicolon that separate values
_LOG = logging.getLogger(__name__)
_NAMES: ContextVar[dict[str, None] | None] = ContextVar("_NAMES", default=None)


@contextmanager
def collected() -> Iterator[dict[str, None]]:
    """Collect the names that ``note_ignored`` gets in this task. A name counts once."""
    names: dict[str, None] = {}
    token = _NAMES.set(names)
    try:
        yield names
    finally:
        _NAMES.reset(token)


def note_ignored(*names: str) -> None:
    """Note the names of fields, or places within their values, that have no effect. Outside a request this does nothing."""
    if (noted := _NAMES.get()) is not None:
        noted.update(dict.fromkeys(names))


def ignored_header(names: dict[str, None]) -> dict[str, str]:
    """Return the header of a response; an empty one if there are no names. Other characters than ASCII are ``?``."""
    if not names:
        return {}
    shown, length = list[str](), 0
    for name in (_UNSAFE.sub("?", name[:200]) for name in names):
        length += len(name) + 2
        if length > _CHARACTERS:
            break
        shown.append(name)
    more = [f"and {len(names) - len(shown)} more"] if len(shown) < len(names) else []
    value = ", ".join([*shown, *more])
    _LOG.info("ignored in a request: %s", value)
    return {HEADER: value}
