"""The manifest of a site, by which other parts know the folder."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["FORMAT", "SITE", "VERSION", "is_site"]

SITE = "site.json"  # its file
FORMAT, VERSION = "edgedec-site", 1  # values of "format" and "version", which load.js compares


def is_site(folder: Path) -> bool:
    """Return True if a folder has the manifest of a site, of any version."""
    try:
        return bool(json.loads((folder / SITE).read_text("utf-8")).get("format") == FORMAT)
    except (OSError, ValueError, AttributeError):
        return False
