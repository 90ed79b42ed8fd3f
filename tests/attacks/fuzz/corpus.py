"""Keep inputs: one ``corpus/READER.tar.xz`` each, of few inputs that together reach what all of them reach.

A tar of files named by their content, oldest dates, sorted: the same inputs make the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import re
import sys
import tarfile
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.attacks.fuzz.property import Finding, check
from tests.attacks.fuzz.targets import Target

__all__ = ["CORPUS", "kept_inputs", "minimised", "pack", "unpacked"]

CORPUS = Path(__file__).resolve().parent / "corpus"
_FOLDERS = ("/quantize/readers/", "/edgedec/families/", "/quantize/pipeline.py")
_VARIABLE = re.compile(r"'.*'|\".*\"|[\d.,()\[\]-]+|FOLDER\S*")


def kept_inputs(reader: str) -> dict[str, bytes]:
    """Return the inputs by name; none if there is no file yet."""
    path = CORPUS / f"{reader}.tar.xz"
    return unpacked(path.read_bytes()) if path.exists() else {}


def unpacked(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as archive:
        return {member.name: file.read() for member in archive if (file := archive.extractfile(member))}


def pack(inputs: Iterable[bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted((hashlib.sha256(data).hexdigest()[:16], data) for data in set(inputs)):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME)


class _Lines:
    """Record which line of the readers ran after which, by ``sys.settrace``: slow, and the same on every machine."""

    def __init__(self) -> None:
        self.found: set[object] = set()
        self._ours: dict[str, bool] = {}

    def call(self, frame: types.FrameType, event: str, _argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in self._ours:
            self._ours[name] = any(part in name for part in _FOLDERS) and "/tests/" not in name
        if not self._ours[name]:
            return None
        last = 0

        def line(frame: types.FrameType, event: str, _argument: Any) -> Any:
            nonlocal last
            if event == "line":
                self.found.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line


def _reached(target: Target, data: bytes, folder: Path) -> set[object]:
    """Return steps from line to line, and the refusal without the input's own details."""
    lines = _Lines()
    previous = sys.gettrace()  # coverage or a debugger would see nothing more without it
    sys.settrace(lines.call)
    try:
        refusal = check(target, data, folder, traced=False)
    finally:
        sys.settrace(previous)
    return {*lines.found, _VARIABLE.sub("", (refusal or "read").replace(str(folder), "FOLDER"))}


def minimised(target: Target, inputs: Mapping[str, bytes], folder: Path) -> list[bytes]:
    """Return those inputs that reach something that no shorter one reaches."""
    covered: set[object] = set()
    minimal = []
    for data in sorted(inputs.values(), key=lambda content: (len(content), content)):
        try:
            reached = _reached(target, data, folder)
        except Finding:  # too slow with every line traced; the campaign has it without tracing
            continue
        if not reached <= covered:
            covered |= reached
            minimal.append(data)
    return minimal
