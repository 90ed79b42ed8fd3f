"""board.json, the manifest of a board bundle: its contents, and the check of the files that it lists.

The files may be malicious: every error names the file, and no memory is allocated because of the manifest alone. See
docs/building.md for the format.
"""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgedec.bundle.manifest import MANIFEST as MODEL_MANIFEST
from edgedec.bundle.manifest import TEMPLATE, TOKENIZER, WEIGHTS, manifest_hash
from edgedec.errors import BundleError, UnsupportedError
from edgedec.hw.compiler import program_file

__all__ = [
    "AGAIN",
    "BITSTREAMS",
    "FORMAT",
    "HWH",
    "KNOWN_ANSWER",
    "MANIFEST",
    "MODEL",
    "PROGRAM",
    "VERSION",
    "checked_files",
    "encode_manifest",
    "is_board_name",
    "listed_files",
    "read_json",
    "read_manifest",
]

_CHUNK_BYTES = 1 << 20  # bytes that are hashed at a time

FORMAT, VERSION = "edgedec-board-bundle", 2
MANIFEST, HWH, PROGRAM, MODEL = "board.json", "accelerator.hwh", "program", "model"
KNOWN_ANSWER = "known_answer.json"
BITSTREAMS = ("accelerator.bit", "accelerator.bin")
AGAIN = "copy or make the board bundle again"
_NEEDED = (
    HWH,
    KNOWN_ANSWER,
    *(f"{PROGRAM}/{name}" for name in (program_file.MANIFEST, program_file.CODE, program_file.IMAGE)),
    *(f"{MODEL}/{name}" for name in (MODEL_MANIFEST, WEIGHTS, TOKENIZER)),
)
_ALLOWED = {*BITSTREAMS, *_NEEDED, f"{MODEL}/{TEMPLATE}"}
_KINDS = {
    "board": str,
    "config": dict,
    "configuration": str,
    "isa_version": int,
    "rtlil_hash": str,
    "bundle": str,
    "files": dict,
}
_KEYS = {"format", "version", "created_by", "sha256", *_KINDS}
_MAX_BYTES = 1 << 20
_BOARD = re.compile("[a-z0-9][a-z0-9._-]{0,63}")
_HASH = re.compile("[0-9a-f]{64}")
_RTLIL_HASH = re.compile("[0-9a-f]{16}")


def is_board_name(text: str) -> bool:
    """Return whether ``text`` is a valid board name, which has no characters with a meaning to shells or terminals."""
    return _BOARD.fullmatch(text) is not None


def listed_files(folder: Path) -> dict[str, Any]:
    """Return the entry "files" of the manifest for a folder."""
    return {name: _entry(folder / name) for name in sorted(_ALLOWED) if (folder / name).exists()}


def encode_manifest(content: Mapping[str, Any]) -> bytes:
    """Return board.json for ``content``, which has all keys except format, version and sha256."""
    whole = {"format": FORMAT, "version": VERSION, **content, "sha256": "0" * 64}
    text = json.dumps(whole, indent=1).encode() + b"\n"
    before, _, after = text.rpartition(b"0" * 64)
    return before + manifest_hash(text, "0" * 64).encode() + after


def _entry(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": _hash_file(file)}


def _hash_file(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while data := stream.read(_CHUNK_BYTES):
            digest.update(data)
    return digest.hexdigest()


def read_json(file: Path, most_bytes: int) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        BundleError: the file is larger than ``most_bytes``, or does not contain a JSON object.
    """
    if file.stat().st_size > most_bytes:
        raise BundleError(f"{file}: larger than {most_bytes} bytes; this is no board bundle")
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file}: not valid JSON ({error}); {AGAIN}") from None
    if not isinstance(content, dict):
        raise BundleError(f"{file}: must hold an object; {AGAIN}")
    return content


def read_manifest(file: Path) -> dict[str, Any]:
    """Return the contents of board.json. Its hash, its keys and the types of their values are checked.

    Raises:
        BundleError: the file is damaged.
        UnsupportedError: it has another version of the format.
    """
    content = read_json(file, _MAX_BYTES)
    if content.get("format") != FORMAT:
        raise BundleError(f"{file}: not a board bundle of edgedec; name the folder of one")
    version, stated = content.get("version"), content.get("sha256")
    if type(version) is not int or version != VERSION:
        raise UnsupportedError(
            f"{file}: board bundle version {reprlib.repr(version)}, this edgedec reads {VERSION}; make the board bundle "
            "again with this edgedec, or install the one that wrote it"
        )
    if not isinstance(stated, str) or not _HASH.fullmatch(stated) or manifest_hash(file.read_bytes(), stated) != stated:
        raise BundleError(f"{file}: its hash does not match its content; {AGAIN}")
    if set(content) != _KEYS:
        raise BundleError(f"{file}: unknown or missing keys {reprlib.repr(sorted(set(content) ^ _KEYS))}; {AGAIN}")
    for key, kind in _KINDS.items():
        if type(content[key]) is not kind:
            raise BundleError(f"{file}: {key} is {reprlib.repr(content[key])}; {AGAIN}")
    if not _BOARD.fullmatch(content["board"]) or not _HASH.fullmatch(content["bundle"]):
        raise BundleError(f"{file}: board or bundle is no name or no hash; {AGAIN}")
    if not _RTLIL_HASH.fullmatch(content["rtlil_hash"]):
        raise BundleError(f"{file}: rtlil_hash is {reprlib.repr(content['rtlil_hash'])}; {AGAIN}")
    return content


def checked_files(path: Path, files: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the SHA-256 of every listed file after checking its size and its contents.

    Raises:
        BundleError: a file is missing or has changed, or the list is not that of a board bundle.
    """
    manifest = path / MANIFEST
    for name in files:
        if name not in _ALLOWED:
            raise BundleError(f"{manifest}: lists {reprlib.repr(name)}, which a board bundle does not have; {AGAIN}")
    missing = [name for name in _NEEDED if name not in files]
    if missing or sum(name in files for name in BITSTREAMS) != 1:
        raise BundleError(f"{manifest}: must list one of {', '.join(BITSTREAMS)}, and {', '.join(_NEEDED)}; {AGAIN}")
    for name, entry in files.items():
        file = path / name
        if not isinstance(entry, dict) or set(entry) != {"bytes", "sha256"}:
            raise BundleError(f"{manifest}: file {name} must have bytes and sha256, not {reprlib.repr(entry)}; {AGAIN}")
        if not file.is_file():
            raise BundleError(f"{file}: missing; {AGAIN}")
        size = file.stat().st_size
        if type(entry["bytes"]) is not int or entry["bytes"] != size:
            raise BundleError(f"{file}: {size} bytes, {MANIFEST} says {reprlib.repr(entry['bytes'])}; {AGAIN}")
        if _hash_file(file) != entry["sha256"]:
            raise BundleError(f"{file}: its hash does not match {MANIFEST}; {AGAIN}")
        yield name, entry["sha256"]
