"""The pair that edgedec shipped first, for tests of what was tuned on it or rests on its acceptance.

Its draft is accepted less often than the present one's, and its files do not change: ``DIGEST`` is their hash.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from edgedec.api import quantize_checkpoint

FOLDER = Path(__file__).resolve().parents[1] / "data" / "first_pair"
DIGEST = "93e2033f5bce5272f303a3f7836cc611320fcfc9b2600ab723e76dfad6e0280a"


@dataclass(frozen=True, kw_only=True)
class FirstPair:
    """Bundles of the pair: ``target`` is ternary, ``target_int8`` and ``draft`` are int8."""

    target: Path
    target_int8: Path
    draft: Path

    @property
    def held_out(self) -> list[str]:
        """Return the paragraphs of the held-out stories."""
        return [line for line in (FOLDER / "held_out.txt").read_text("utf-8").splitlines() if line]


def digest() -> str:
    """Return the hash of all files of the pair."""
    found = hashlib.sha256()
    for file in sorted(file for file in FOLDER.rglob("*") if file.is_file()):
        found.update(f"{file.relative_to(FOLDER).as_posix()}\0".encode() + file.read_bytes())
    return found.hexdigest()


def make_first_pair(folder: Path) -> FirstPair:
    """Return the pair, whose bundles are written into ``folder``."""
    pair = FirstPair(target=folder / "target", target_int8=folder / "target-int8", draft=folder / "draft")
    quantize_checkpoint(FOLDER / "target", pair.target, method="ternary")
    quantize_checkpoint(FOLDER / "target", pair.target_int8, method="int8")
    quantize_checkpoint(FOLDER / "draft", pair.draft, method="int8")
    return pair
