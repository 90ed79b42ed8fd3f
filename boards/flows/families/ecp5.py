"""ECP5: the open tools."""

from __future__ import annotations

FLOWS = ("nextpnr",)
