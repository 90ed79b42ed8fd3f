"""Edits that no test can notice, because the hardware does the same with them; a person has looked at each.

``same_hardware.jsonl`` has one in a line: the module, the changed line of its text before and after the edit, and why.
An entry counts only while the line is in the module, so a change of it opens the question again.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.mutation.mutants import Mutant

__all__ = ["FILE", "read_same_hardware", "same_hardware"]

FILE = Path("tests/mutation/same_hardware.jsonl")
_MEMBERS = {"module", "before", "after", "reason"}


def read_same_hardware(root: Path) -> dict[tuple[str, str, str], str]:
    """Return (module, line before, line after) -> reason; nothing if the tree has no such file.

    Raises:
        ValueError: a line has other members, no reason, or is there twice.
    """
    path, entries = root / FILE, dict[tuple[str, str, str], str]()
    for number, line in enumerate(path.read_text("utf-8").splitlines() if path.is_file() else (), start=1):
        entry = json.loads(line)
        if set(entry) != _MEMBERS or not entry["reason"].strip():
            raise ValueError(f"{FILE}:{number} must have the members {', '.join(sorted(_MEMBERS))}, and a reason")
        key = (entry["module"], entry["before"], entry["after"])
        if key in entries:
            raise ValueError(f"{FILE}:{number} is there twice")
        entries[key] = entry["reason"]
    return entries


def same_hardware(entries: dict[tuple[str, str, str], str], mutant: Mutant, original: str) -> str:
    """Return why an edit of the text ``original`` changes nothing, or "" if nobody has said so."""
    return entries.get((mutant.module, *mutant.lines(original)), "")
