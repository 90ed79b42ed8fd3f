"""Read tokenizers of every format as JSON of the ``tokenizers`` library, and check them against the model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from edgedec.bundle.file_kinds import identify, refusal
from edgedec.errors import BundleError, EdgedecError, UsageError
from edgedec.quantize.readers.tokenizers.charsmap import check_charsmaps
from edgedec.quantize.readers.tokenizers.llama2c_tokenizer import (
    read_tokenizer_bin,
    read_vocab_listing,
    to_tokenizers_json,
)
from edgedec.quantize.readers.tokenizers.sentencepiece_model import read_model_file
from edgedec.quantize.readers.untrusted import member, printable, read_text, shown

__all__ = ["CheckedTokenizer", "check_tokenizer", "find_tokenizer", "read_json_text", "read_tokenizer"]

log = logging.getLogger(__name__)

_TAKEN = "tokenizer.json, a SentencePiece .model or .vocab listing, Llama 3's ranks or llama2.c's tokenizer.bin"
_MODEL = "tokenizer.model"
_TRIAL = "a Z é\u00a0中\U0001f999\n\t0 <s>\u2581x"
_MAX_JSON_BYTES = 256 << 20  # limit of a tokenizer.json; the largest in use has about 35 MB


@dataclass(frozen=True, kw_only=True)
class CheckedTokenizer:
    """A tokenizer that was tried out. ``json`` has neither padding nor truncation, which would silently change prompts."""

    path: Path
    json: str
    vocabulary: Tokenizer


def find_tokenizer(folder: Path, name: str) -> Path:
    """Return the path of ``folder/name``, or of the ``tokenizer.model`` in the folder if there is no such file.

    Raises:
        UsageError: the folder has neither file.
    """
    for candidate in (name, _MODEL):
        path = member(folder, candidate)
        if path is not None:
            return path
    raise UsageError(f"{folder} has no {name}; pass the model's tokenizer with --tokenizer: {_TAKEN}")


def read_tokenizer(path: Path, vocab_size: int) -> CheckedTokenizer:
    """Read a tokenizer file, or the ``tokenizer.json`` of a folder.

    Raises:
        BundleError: it is damaged, or has ids of ``vocab_size`` or more.
        UnsupportedError: it is a ``.vocab`` that is not BPE, or a ``.model`` of an unsupported kind.
        UsageError: its format is not known.
    """
    if path.is_dir():
        path = find_tokenizer(path, "tokenizer.json")
    if identify(path).role == "lfs":
        raise BundleError(refusal(path, "tokenizer"))
    match path.suffix:
        case ".json":
            text = read_json_text(path)
        case ".bin":
            text = to_tokenizers_json(path, read_tokenizer_bin(path))
        case ".vocab":
            text = to_tokenizers_json(path, read_vocab_listing(path))
        case ".model":
            text = read_model_file(path)
        case _:
            raise UsageError(refusal(path, "tokenizer"))
    return check_tokenizer(path, text, vocab_size)


def read_json_text(path: Path) -> str:
    """Return the text of a ``tokenizer.json``, which may be larger than other JSON files.

    Raises:
        BundleError: it is too large, or not UTF-8.
    """
    return read_text(path, _MAX_JSON_BYTES)


def check_tokenizer(
    path: Path, text: str, vocab_size: int, finish: Callable[[Tokenizer], bool] = lambda _tokenizer: False
) -> CheckedTokenizer:
    """Check and try out a ``tokenizer.json`` from ``path``.

    ``finish`` may change the tokenizer, and returns whether it has.

    Raises:
        BundleError: it is damaged, or has ids of ``vocab_size`` or more.
    """
    try:
        return _checked(path, text, vocab_size, finish)
    except (KeyboardInterrupt, SystemExit, EdgedecError):
        raise
    except BaseException as error:  # the library's panics are not subclasses of Exception
        raise BundleError(f"{path} is not a usable tokenizer: {printable(str(error))}") from None


def _checked(path: Path, text: str, vocab_size: int, finish: Callable[[Tokenizer], bool]) -> CheckedTokenizer:
    check_charsmaps(text)
    tokenizer = Tokenizer.from_str(text)
    changed = finish(tokenizer)
    if getattr(tokenizer.model, "dropout", None):
        log.warning("%s: dropout is left out, which splits texts at random and belongs to training", path)
        tokenizer.model.dropout = None
        changed = True
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise BundleError(f"{path}: the vocabulary is empty")
    token, last = max(vocabulary.items(), key=lambda item: item[1])
    _check_last(path, token, last, vocab_size)  # before to_str, which takes time in proportion to the last id
    if changed or tokenizer.padding is not None or tokenizer.truncation is not None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        text = tokenizer.to_str()
        tokenizer = Tokenizer.from_str(text)  # checks that the library can read its own output
    # A trial, because the post-processor and the unknown token may name tokens that do not exist, or ids that are too large.
    last = max(last, *tokenizer.encode(_TRIAL).ids)
    _check_last(path, token, last, vocab_size)
    tokenizer.decode([last])
    return CheckedTokenizer(path=path, json=text, vocabulary=tokenizer)


def _check_last(path: Path, token: str, last: int, vocab_size: int) -> None:
    if last >= vocab_size:
        raise BundleError(
            f"{path}: has token id {last} ({shown(token)}), but the model's vocabulary ends at {vocab_size - 1}; "
            "this tokenizer belongs to another model"
        )
