"""Identify a file or folder by its first bytes, so that a message can name its kind and the right command for it.

``identify`` reads at most ``PREFIX_BYTES`` of a file and never fails. It only reports a kind that the bytes confirm; the
ending of a name is never enough.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["PREFIX_BYTES", "FileKind", "Role", "identify", "refusal"]

PREFIX_BYTES = 4096
Role = Literal["bundle", "board bundle", "checkpoint", "weights", "tokenizer", "lfs", "archive", "other"]


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """The kind of a file or folder.

    Members:
        what: its description with an article, such as "a GGUF file".
        role: its use in edgedec: ``quantize`` reads a ``checkpoint``; ``weights`` are one file of a checkpoint that is a
            folder.
        advice: the next step if it does not depend on the command; for an archive, the program that unpacks it.
        is_text: True if it is readable text.
    """

    what: str
    role: Role = "other"
    advice: str = ""
    is_text: bool = False


_PICKLE = "save the model as safetensors, because pickles can run code and are not read"
_MODEL_FORMAT = "edgedec does not read this format; take the model's safetensors or GGUF"
_UNKNOWN = FileKind(what="a file of a kind that edgedec does not know")
_SAFETENSORS = FileKind(what="a safetensors file", role="weights")
_TORCH = FileKind(what="a PyTorch file, which holds pickled Python objects", advice=_PICKLE)
_LFS = FileKind(what="a pointer of Git LFS, which stands for a file that was not downloaded", role="lfs")
_MAGIC: tuple[tuple[int, bytes, FileKind], ...] = (  # offset, bytes, kind
    (0, b"GGUF", FileKind(what="a GGUF file", role="checkpoint")),
    (0, b"\x1f\x8b\x08", FileKind(what="a gzip archive", role="archive", advice="gunzip")),
    (4, b"1AY&SY", FileKind(what="a bzip2 archive", role="archive", advice="bunzip2")),
    (0, b"\xfd7zXZ\0", FileKind(what="an xz archive", role="archive", advice="unxz")),
    (0, b"\x28\xb5\x2f\xfd", FileKind(what="a zstd archive", role="archive", advice="unzstd")),
    (0, b"7z\xbc\xaf\x27\x1c", FileKind(what="a 7z archive", role="archive", advice="7z x")),
    (0, b"Rar!\x1a\x07", FileKind(what="a RAR archive", role="archive", advice="unrar x")),
    (257, b"ustar\0", FileKind(what="a tar archive", role="archive", advice="tar -xf")),
    (257, b"ustar  \0", FileKind(what="a tar archive", role="archive", advice="tar -xf")),
    (0, b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", _TORCH),
    (0, b"\x93NUMPY", FileKind(what="a NumPy array", advice=_MODEL_FORMAT)),
    (0, b"\x89HDF\r\n\x1a\n", FileKind(what="an HDF5 file", advice=_MODEL_FORMAT)),
    (4, b"TFL3", FileKind(what="a TensorFlow Lite model", advice=_MODEL_FORMAT)),
    (0, b"tjgg", FileKind(what="a model in llama.cpp's format before GGUF", advice=_MODEL_FORMAT)),
)
_LFS_MAGIC = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
_PARTS = ("manifest.json", "weights.bin", "tokenizer.json", "board.json")  # files of a bundle, or of a board bundle
_FOLDER_MAX = 1000  # entries that are examined


def identify(path: Path) -> FileKind:
    """Return the kind of the file or folder ``path``. This never fails, and opens only regular files."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return _folder(path)
        if not stat.S_ISREG(status.st_mode):
            return FileKind(what="neither a file nor a folder")
        return _of_bytes(_prefix(path), status.st_size)
    except (OSError, ValueError) as error:  # ValueError: a NUL inside the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return FileKind(what=f"not readable ({reason})")


def _prefix(path: Path) -> bytes:
    """Return the first bytes of a regular file; empty for anything else, because opening a pipe would block forever."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(PREFIX_BYTES)


def _of_bytes(data: bytes, size: int) -> FileKind:
    """Return the kind of a file of ``size`` bytes that begins with ``data``."""
    if not data:
        return FileKind(what="an empty file", advice="copy or download it again")
    text = _text(data, size)  # text first, because a text may begin with a word such as "GGUF"
    if text is not None:
        return text
    for offset, magic, kind in _MAGIC:
        if data.startswith(magic, offset):
            return kind
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip(data)
    for test in (_safetensors, _llama2c, _onnx, _pickle):
        match = test(data, size)
        if match is not None:
            return match
    return _UNKNOWN


def _zip(data: bytes) -> FileKind:
    """Return the kind of a zip archive. The first member of an archive of PyTorch or NumPy identifies it."""
    name = data[30 : 30 + int.from_bytes(data[26:28], "little")] if len(data) > 30 else b""
    if name.endswith((b"/data.pkl", b"/version", b"/byteorder")):
        return _TORCH
    if name.endswith(b".npy"):
        return FileKind(what="an archive of NumPy arrays", advice=_MODEL_FORMAT)
    return FileKind(what="a zip archive", role="archive", advice="unzip")


def _safetensors(data: bytes, size: int) -> FileKind | None:
    length = int.from_bytes(data[:8], "little")
    return _SAFETENSORS if 2 <= length <= size - 8 and data[8:10] in (b'{"', b"{}") else None


def _llama2c(data: bytes, size: int) -> FileKind | None:
    """Identify versions 1 and 2 by their magic, and version 0 by its sizes, which determine the file's own size."""
    kind = FileKind(what="a llama2.c checkpoint", role="checkpoint")
    if data.startswith(b"24ka"):
        return kind if size >= 256 and int.from_bytes(data[4:8], "little") in (1, 2) else None
    if len(data) < 28:
        return None
    dim, hidden, layers, heads, kv_heads, vocab, positions = struct.unpack("<7i", data[:28])
    if min(dim, hidden, layers, heads, kv_heads, positions) < 1 or not vocab or dim % heads:
        return None
    head = dim // heads
    layer = 2 * dim + 2 * dim * dim + 2 * dim * kv_heads * head + 3 * dim * hidden
    floats = abs(vocab) * dim * (1 if vocab > 0 else 2) + layers * layer + dim + positions * (head // 2) * 2
    return kind if size == 28 + 4 * floats else None


_ONNX_WIRES = {2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2}  # field of a ModelProto -> its wire type
_GRAPH = 7


def _onnx(data: bytes, size: int) -> FileKind | None:
    """Identify a ModelProto: its version, then known fields, up to a graph that ends inside the file."""
    if len(data) < 4 or data[0] != 0x08 or not 1 <= data[1] < 64:
        return None
    at = 2
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        field, wire = tag >> 3, tag & 7
        if _ONNX_WIRES.get(field) != wire or at + (value if wire else 0) > size:
            return None
        if field == _GRAPH:
            inner = data[at : at + 1]
            named = inner in (b"\x0a", b"\x12") and value > 2  # a node, or the graph's name
            return FileKind(what="an ONNX model", advice=_MODEL_FORMAT) if named else None
        at += value if wire else 0
    return None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at
    return 0, len(data)


def _pickle(data: bytes, size: int) -> FileKind | None:
    framed = data[:1] == b"\x80" and data[1:3] in (b"\x04\x95", b"\x05\x95")
    frame = int.from_bytes(data[3:11], "little")
    return FileKind(what="pickled Python objects", advice=_PICKLE) if framed and 1 < frame <= size - 11 else None


def _text(data: bytes, size: int) -> FileKind | None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if size <= len(data) or error.start < len(data) - 3 or "unexpected end" not in error.reason:
            return None
        text = data[: error.start].decode("utf-8")
    if any(ord(one) < 32 and one not in "\t\n\r\f" for one in text):
        return None
    if data.startswith(_LFS_MAGIC):
        return _LFS
    begin = text.lstrip("\ufeff \t\r\n")[:200].lower()
    if begin.startswith(("<!doctype html", "<html")):
        return FileKind(what="a web page, which was downloaded in place of the file", advice="download the file itself")
    if size <= len(data) and begin.startswith(("{", "[")):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return FileKind(what="a text file", is_text=True)
        return FileKind(what="a JSON file", is_text=True)
    what = "a text file that begins as JSON does" if begin.startswith("{") else "a text file"
    return FileKind(what=what, is_text=True)


def _folder(path: Path) -> FileKind:
    """Return the kind of a folder, by the files in it."""
    with os.scandir(path) as entries:
        names = {entry.name for entry, _ in zip(entries, range(_FOLDER_MAX), strict=False)}
    if not names:
        return FileKind(what="an empty folder")
    if "board.json" in names and b'"edgedec-board-bundle"' in _prefix(path / "board.json"):
        return FileKind(what="a board bundle", role="board bundle")
    if "manifest.json" in names and b'"edgedec-bundle"' in _prefix(path / "manifest.json"):
        return FileKind(what="a bundle", role="bundle")
    weights = sorted(name for name in names if name.endswith(".safetensors"))
    if any(_prefix(path / name).startswith(_LFS_MAGIC) for name in weights[:1]):  # the name may be a folder's
        return FileKind(what="a checkpoint whose weights are pointers of Git LFS", role="lfs")
    if "config.json" in names:
        if weights or "model.safetensors.index.json" in names:
            return FileKind(what="a Hugging Face checkpoint", role="checkpoint")
        if any(name.startswith("pytorch_model") and name.endswith((".bin", ".bin.index.json")) for name in names):
            return FileKind(what="a Hugging Face checkpoint with pickled weights only", advice=_PICKLE)
        return FileKind(what="a Hugging Face folder without weights", advice="download its .safetensors files too")
    if "adapter_config.json" in names:
        return FileKind(what="an adapter of a model, not a whole one", advice="merge it into its model first")
    models = sorted(name for name in names if name.endswith(".gguf"))
    if models:
        return FileKind(
            what="a folder with GGUF files", advice=f"name one of them: {shlex.quote(str(path / models[0]))}"
        )
    if "snapshots" in names and "refs" in names:
        return FileKind(
            what="a folder of the Hugging Face cache",
            advice=f"name one of the folders in {shlex.quote(str(path))}/snapshots",
        )
    return FileKind(what="a folder without a model")


def refusal(path: Path, expected: Literal["bundle", "checkpoint", "tokenizer", "board bundle"]) -> str:
    """Return the message that refuses ``path``: its kind, and the next step to get the expected kind."""
    kind = identify(path)
    return f"{path}: is {kind.what}; {_next_step(path, kind, expected)}"


def _next_step(path: Path, kind: FileKind, expected: str) -> str:
    quoted = shlex.quote(str(path))
    if kind.role == "lfs":
        folder = path if path.is_dir() else path.parent
        return f"get the files themselves: git -C {shlex.quote(str(folder))} lfs pull"
    if kind.role == "archive":
        return f"unpack it first: {kind.advice} {quoted}"
    if kind.role == "bundle" and expected == "checkpoint":
        return f"it is quantized already, run it: edgedec generate -m {quoted} -p 'Once upon a time'"
    if kind.role == "bundle" and expected == "board bundle":
        return f"make a board bundle of it: edgedec build-bitstream -m {quoted} --board NAME -o FOLDER"
    if kind.role == "board bundle" and expected in ("bundle", "checkpoint"):
        return "run it on its board with --device pynq, or run the bundle that it was made from"
    if expected == "bundle" and kind.role == "checkpoint":
        return f"make a bundle of it first: edgedec quantize {quoted} -o {shlex.quote(_bundle_name(path))}"
    if kind.role == "weights":
        folder = path.parent
        return (
            "its folder is the checkpoint, with config.json and the tokenizer in it: "
            f"edgedec quantize {shlex.quote(str(folder))} -o {shlex.quote(_bundle_name(folder))}"
        )
    whole = identify(path.parent) if path.name in _PARTS else _UNKNOWN
    if whole.role in ("bundle", "board bundle"):
        return f"name its {whole.role}, which is the folder {shlex.quote(str(path.parent))}"
    if kind.advice:
        return kind.advice
    return {
        "bundle": "make a bundle with: edgedec quantize CHECKPOINT -o NAME",
        "checkpoint": "give a Hugging Face folder (config.json, safetensors, tokenizer.json), a GGUF file or a llama2.c "
        ".bin file",
        "tokenizer": "give a tokenizer.json, a SentencePiece .model or .vocab listing, Llama 3's ranks or llama2.c's "
        "tokenizer.bin",
        "board bundle": "make one with: edgedec build-bitstream -m BUNDLE --board NAME -o FOLDER",
    }[expected]


def _bundle_name(path: Path) -> str:
    stem = path.name if path.is_dir() else path.stem
    return f"{stem or path.resolve().name or 'model'}.edgedec"
