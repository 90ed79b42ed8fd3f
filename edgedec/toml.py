"""Reading of TOML by the library of Python 3.11 and later, or by the package that it was made of."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["parse_toml"]


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text: ``parse_toml("a = 1")`` is ``{"a": 1}``.

    The parser is imported here, because few runs read TOML and every start would wait for it.

    Raises:
        ValueError: the text is not valid TOML.
        RecursionError: it is nested too deeply.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)
