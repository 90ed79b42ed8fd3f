"""The statements of a checkpoint about itself: its name, its licence, the model that it was made from, and its files.

All of it is a stranger's text. It is read with limits and without a YAML parser: of the front matter of a README, which may
be anything, only single words and short lists of words are taken. What is not one of these is left out, and a reason is
kept.
"""

from __future__ import annotations

import hashlib
import logging
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgedec.errors import EdgedecError
from edgedec.progress import Progress, silent
from edgedec.quantize.readers.gguf.parts import read_parts
from edgedec.quantize.readers.untrusted import file_bytes, member, printable, read_text

__all__ = ["FileFact", "Provenance", "front_matter", "provenance"]

_LOG = logging.getLogger(__name__)

README = "README.md"
_MOST_README_BYTES = 1 << 20
_MOST_LINES = 500  # lines of front matter that are looked at
_MOST_WORDS = 8  # entries of a list
_MOST_FILES = 512  # files of a checkpoint that are hashed
_CHUNK_BYTES = 1 << 20
# Files that are part of a model, and of the terms under which it is given.
_PARTS = frozenset([".safetensors", ".json", ".model", ".jinja", ".txt", ".tiktoken"])
_TERMS = re.compile(r"(?:licen[cs]e|copying|notice|use_policy|usage_policy)(?:[._-].{0,40})?", re.IGNORECASE)
# Rules of the values: an identifier of the list of licences, a name for one that is not there, an address, a repository.
_RULES = {
    "license": re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}"),
    "license_name": re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,95}"),
    "license_link": re.compile(r"https://[A-Za-z0-9._~:/?#@!&()*+,;=%-]{1,300}"),
    "base_model": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?"),
}
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,63}):(?:[ \t]+(.*))?")
_ITEM = re.compile(r"[ \t]*-[ \t]+(.*)")
_HUB_FOLDER = re.compile(r"models--([A-Za-z0-9._-]{1,96})--([A-Za-z0-9._-]{1,96})")
_MAGIC = b"GGUF"
_GGUF_KEYS = {
    "general.license": "license",
    "general.license.name": "license_name",
    "general.license.link": "license_link",
    "general.source.huggingface.repository": "base_model",
}


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """A file of a checkpoint: its name, its size in bytes, and its SHA-256 in hexadecimal digits."""

    name: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The origin of a model, as its checkpoint states it.

    Members:
        name: the checkpoint's name; ``organization/name`` in a cache of the hub.
        license, license_name, license_link, base_model: values of the checkpoint under these keys, each at most
            ``_MOST_WORDS``; empty: it has none, or one that cannot be used.
        terms: files with the text of a licence, and their first lines.
        files: files of the checkpoint.
        unread: statements that could not be used, each with the reason; sentences without a full stop.
    """

    name: str
    license: tuple[str, ...] = ()
    license_name: tuple[str, ...] = ()
    license_link: tuple[str, ...] = ()
    base_model: tuple[str, ...] = ()
    terms: Mapping[str, str] = field(default_factory=dict)
    files: tuple[FileFact, ...] = ()
    unread: tuple[str, ...] = ()


def provenance(source: Path, *, report: Progress = silent) -> Provenance:
    """Return what a checkpoint says about itself, and the hashes of its files, which are all read.

    Parameters:
        source: folder or file of the checkpoint, as ``Checkpoint.source`` has it.
        report: called with the name of a file, the bytes that were hashed and those of all files.

    Raises:
        EdgedecError: a file of the model cannot be read.
    """
    unread = list[str]()
    texts: dict[str, list[str] | None] = {}
    if source.is_dir():
        paths, texts = list(_files(source, unread)), _readme(source, unread)
    elif _is_gguf(source):
        header = read_parts(source)
        paths = sorted({source, *(tensor.path for tensor in header.tensors.values())})
        stated = {name: header.metadata[key] for key, name in _GGUF_KEYS.items() if key in header.metadata}
        texts = {name: [value] if isinstance(value, str) else None for name, value in stated.items()}
    else:
        paths = [source]
    values = {name: _accepted(name, words, unread) for name, words in texts.items() if name in _RULES}
    return Provenance(
        name=_name(source),
        license=values.get("license", ()),
        license_name=values.get("license_name", ()),
        license_link=values.get("license_link", ()),
        base_model=values.get("base_model", ()),
        terms={path.name: _first_line(path) for path in paths if _TERMS.fullmatch(path.name)},
        files=_hashed(paths, report),
        unread=tuple(unread),
    )


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def front_matter(text: str) -> dict[str, list[str] | None]:
    r"""Return the words of the front matter of a README by key. None: the key has a value that is not words.

    A word is a plain or quoted scalar on one line. A list is one of words, on lines of their own or between brackets.
    Anchors, tags, blocks, objects, escapes and keys that occur twice are not read.

    Example: ``"---\nlicense: mit\ntags:\n- a\n- b\n---\n"`` gives ``{"license": ["mit"], "tags": ["a", "b"]}``.
    """
    lines = iter(text.removeprefix("\ufeff").split("\n", _MOST_LINES + 1)[: _MOST_LINES + 1])
    if next(lines, "").rstrip() != "---":
        return {}
    found: dict[str, list[str] | None] = {}
    key, items = "", list[str | None]()
    for raw in lines:
        line = raw.rstrip()
        if line in ("---", "..."):
            return found
        match, item = _KEY.fullmatch(line), _ITEM.fullmatch(line)
        if match is not None:
            key, items = match[1], []
            twice = key in found
            found[key] = None if twice else _words(match[2] or "")
            if twice or (match[2] or "").strip():
                key = ""
        elif item is not None and key:
            items.append(_word(item[1]))
            found[key] = None if None in items else [word for word in items if word is not None]
        elif line.strip() and not line.lstrip().startswith("#"):
            if key:
                found[key] = None  # an object or a block below the key
            elif found and line[0] in " \t":
                found[next(reversed(found))] = None  # the value goes on
    return {}  # the end is missing, so this is no front matter


def _words(text: str) -> list[str] | None:
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        words = [_word(part) for part in text[1:-1].split(",")] if text[1:-1].strip() else []
        return None if None in words else [word for word in words if word is not None]
    if not text:
        return []
    word = _word(text)
    return None if word is None else [word]


def _word(text: str) -> str | None:
    """Return a scalar; None if it needs more than its quotes taken off."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        inner = text[1:-1]
        return None if text[0] in inner or "\\" in inner else inner
    plain = re.split(r"[ \t]#", text, maxsplit=1)[0].strip()
    return plain if re.fullmatch(r"[A-Za-z0-9][^\x00-\x1f\"'{}\[\]&*!|>%`,]*", plain) and ": " not in plain else None


def _readme(folder: Path, unread: list[str]) -> dict[str, list[str] | None]:
    try:
        path = member(folder, README)
        return {} if path is None else front_matter(read_text(path, _MOST_README_BYTES))
    except EdgedecError as error:
        _LOG.warning("%s", error)  # its message has the folder, which is nobody's business who reads the card
        unread.append(f"{README}: it cannot be read as text")
        return {}


def _accepted(name: str, words: list[str] | None, unread: list[str]) -> tuple[str, ...]:
    """Return the values of a key if all of them follow its rule."""
    if words is not None and len(words) <= _MOST_WORDS and all(_RULES[name].fullmatch(word) for word in words):
        return tuple(words)
    shown = "it is no word or list of words" if words is None else printable(", ".join(words)[:80])
    unread.append(f"{name} of the checkpoint: {shown}")
    return ()


def _name(source: Path) -> str:
    """Return a checkpoint's name."""
    path = source.absolute()
    for folder in path.parents[:3]:
        if (match := _HUB_FOLDER.fullmatch(folder.name)) and path.is_dir():
            return f"{match[1]}/{match[2]}"
    return path.name if path.is_dir() else path.stem


def _files(source: Path, unread: list[str]) -> Iterator[Path]:
    """Yield the files of a folder that belong to the model, in the order of their names."""
    names = sorted(entry.name for entry in source.iterdir())
    wanted = [name for name in names if Path(name).suffix in _PARTS or name == README or _TERMS.fullmatch(name)]
    if len(wanted) > _MOST_FILES:
        unread.append(f"{len(wanted) - _MOST_FILES} further files: at most {_MOST_FILES} are hashed")
    for name in wanted[:_MOST_FILES]:
        try:
            path = member(source, name)
            if path is not None and stat.S_ISREG(path.stat().st_mode):
                yield path
        except (EdgedecError, OSError) as error:
            _LOG.warning("%s", error)
            unread.append(f"{printable(name)}: it is no file of the checkpoint, or cannot be read")


def _first_line(path: Path) -> str:
    """Return the first line of a text that is not blank; empty if the file is no text."""
    with path.open("rb") as file:
        head = file.read(4096)
    lines = (line.strip() for line in head.decode("utf-8", "replace").splitlines())
    return printable(next((line for line in lines if line), ""))[:120]


def _hashed(paths: list[Path], report: Progress) -> tuple[FileFact, ...]:
    total, done, facts = sum(map(file_bytes, paths)), 0, []
    for path in paths:
        digest, size = hashlib.sha256(), 0
        try:
            with path.open("rb") as file:
                while data := file.read(_CHUNK_BYTES):
                    digest.update(data)
                    size += len(data)
                    done += len(data)
                    report(path.name, min(done, total), total)
        except OSError as error:
            raise EdgedecError(f"{path}: cannot be read for its hash: {error.strerror}") from None
        facts.append(FileFact(name=path.name, nbytes=size, sha256=digest.hexdigest()))
    return tuple(facts)
