"""Write a bundle's tokenizer into folders in Hugging Face's layout, and read it back."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.quantize.exporters.quiet_reader import read_quietly
from edgedec.quantize.readers import open_checkpoint
from edgedec.quantize.readers.tokenizers.tokenizer_file import read_tokenizer
from edgedec.same_tokens import TEXTS, added_texts, first_difference

__all__ = ["check_model_folder", "check_tokenizer", "tokenizer_config", "with_special_ids", "write_tokenizer"]

log = logging.getLogger(__name__)


def tokenizer_config(bundle: Bundle) -> dict[str, Any]:
    """Return the settings that other programs need in addition to ``tokenizer.json``.

    A BOS or EOS that is not an added token is left out, because transformers would make it one and cut texts at it.
    """
    words = Tokenizer.from_file(str(bundle.tokenizer_file))
    added = words.get_added_tokens_decoder()
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name, token in (("bos_token", bundle.tokens.bos), ("eos_token", next(iter(bundle.tokens.eos), None))):
        if token in added:
            settings[name] = added[token].content
        elif token is not None and name in (bundle.chat_template or ""):
            log.warning("%s: its template's %s is no added token, and is empty in other programs", bundle.path, name)
    if bundle.chat_template is not None:
        settings["chat_template"] = bundle.chat_template
    return settings


def with_special_ids(bundle: Bundle, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's configuration with the bundle's BOS and all of its ends, which the checkpoint's own may lack."""
    ends = list(bundle.tokens.eos)
    return {**config, "bos_token_id": bundle.tokens.bos, "eos_token_id": ends[0] if len(ends) == 1 else ends or None}


def write_tokenizer(bundle: Bundle, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``."""
    (folder / "tokenizer.json").write_bytes(bundle.tokenizer_file.read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(bundle), indent=2), encoding="utf-8")


def check_tokenizer(bundle: Bundle, folder: Path) -> None:
    """Check that the tokenizer in a folder cuts texts as the bundle's does.

    Raises:
        UnsupportedError: it does not; the message names the text and both lists of ids.
    """
    _check_ids(bundle, read_tokenizer(folder / "tokenizer.json", bundle.config["vocab_size"]).vocabulary)


def check_model_folder(bundle: Bundle, folder: Path) -> None:
    """Check that a folder, read as a checkpoint, has the bundle's tokenizer, BOS, ends and chat template.

    Raises:
        UnsupportedError: something differs; the message names it.
    """
    read = read_quietly(open_checkpoint, folder, f"{bundle.path}: its Hugging Face folder")
    _check_ids(bundle, Tokenizer.from_str(read.tokenizer_json))
    tokens = bundle.tokens
    for what, ours, other in (
        ("BOS", tokens.bos, read.bos_token_id),
        ("ends of a text", tokens.eos, read.eos_token_ids),
        ("chat template", bundle.chat_template, read.chat_template),
    ):
        if ours != other:
            raise UnsupportedError(f"{bundle.path}: its {what} {ours!r} would be {other!r} in a Hugging Face folder")


def _check_ids(bundle: Bundle, other: Tokenizer) -> None:
    ours = Tokenizer.from_file(str(bundle.tokenizer_file))
    difference = first_difference(ours, other, [*TEXTS, *added_texts(ours)])
    if difference is not None:
        raise UnsupportedError(
            f"{bundle.path}: its tokenizer would be another one in a Hugging Face folder: {difference}"
        )
