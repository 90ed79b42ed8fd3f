"""Read checkpoints of every supported format into a :class:`Checkpoint` with Hugging Face names, tensor by tensor.

The files may come from untrusted sources. A damaged or inconsistent file raises a ``BundleError`` or an
``UnsupportedError`` that names the file, the tensor and the reason. Sizes are checked against the file before memory is
allocated for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from edgedec.bundle.file_kinds import identify, refusal
from edgedec.bundle.missing import nothing_at
from edgedec.errors import BundleError, UnsupportedError, UsageError
from edgedec.quantize.readers.checkpoint import Checkpoint, TensorInfo
from edgedec.quantize.readers.gguf.checkpoint import read_gguf
from edgedec.quantize.readers.huggingface import read_huggingface
from edgedec.quantize.readers.llama2c import read_llama2c
from edgedec.quantize.readers.untrusted import file_bytes, read_bytes

__all__ = ["Checkpoint", "TensorInfo", "open_checkpoint"]


def open_checkpoint(path: Path, tokenizer: Path | None = None) -> Checkpoint:
    """Open a Hugging Face folder, a GGUF file or a llama2.c ``.bin`` file without reading any tensor.

    ``tokenizer`` is a ``tokenizer.json``, a folder that holds one, a SentencePiece ``.model`` or ``.vocab`` listing, a
    list of Llama 3's ranks or a llama2.c ``tokenizer.bin``. The default is the tokenizer inside the file or beside it.

    Raises:
        UsageError: ``path`` or ``tokenizer`` does not exist.
        BundleError: a file is damaged or incomplete, or does not belong to the other files.
        UnsupportedError: the file is valid but its format is not supported.
    """
    _require(path, "checkpoint")
    if tokenizer is not None:
        _require(tokenizer, "tokenizer")
    kind = identify(path)
    if kind.role in ("bundle", "board bundle"):
        raise UsageError(refusal(path, "checkpoint"))
    if kind.role == "lfs":
        raise BundleError(refusal(path, "checkpoint"))
    if path.is_dir():
        return read_huggingface(path, tokenizer)
    if kind.role == "weights" or path.suffix == ".safetensors":
        raise UsageError(refusal(path, "checkpoint"))
    magic = read_bytes(path, offset=0, count=min(4, file_bytes(path)), what="the magic")
    if magic == b"GGUF":
        return read_gguf(path, tokenizer)
    if path.suffix in {".pt", ".pth"}:
        raise UnsupportedError(f"{path}: PyTorch pickles can run code and are not read; save the model as safetensors")
    if kind.role == "archive" or kind.advice or kind.is_text:
        raise (UnsupportedError if magic else BundleError)(refusal(path, "checkpoint"))
    return read_llama2c(path, tokenizer)


def _require(path: Path, what: Literal["checkpoint", "tokenizer"]) -> None:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(nothing_at(path, what)) from None
    except OSError as error:
        raise BundleError(f"the {what} {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # the path contains a NUL
        raise UsageError(f"the {what} {str(path)!r} is not a path: {error}") from None
