"""Read Hugging Face folders: ``config.json``, safetensors (sharded or not), ``tokenizer.json`` and related files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.bitnet import read_bitnet_tensors
from edgedec.quantize.readers.checkpoint import Checkpoint, Makers, TensorInfo
from edgedec.quantize.readers.huggingface_layout import language_config, translate
from edgedec.quantize.readers.safetensors_file import StoredTensor, TensorEntry, read_entries
from edgedec.quantize.readers.tokenizers.tokenizer_file import find_tokenizer, read_tokenizer
from edgedec.quantize.readers.untrusted import MAX_JSON_BYTES, member, read_object, read_text, shown

__all__ = ["read_huggingface"]

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_HADAMARD = "hadamard.json"  # PrismML's description of rotated weights
_SHARD = re.compile(r"\w[\w.-]*\.safetensors", re.ASCII)  # a plain file name: no separator, no drive, no "..", no NUL


def read_huggingface(folder: Path, tokenizer: Path | None = None) -> Checkpoint:
    """Open a Hugging Face folder; ``tokenizer`` (a file or a folder) replaces the folder's own.

    Raises:
        BundleError: a file is missing or damaged, or the files contradict each other.
        UnsupportedError: the folder has only pickled weights or only a SentencePiece tokenizer, or its weights are
            quantized by another method than BitNet's, or stored rotated.
    """
    config_path = member(folder, "config.json")
    if config_path is None:
        raise BundleError(f"{folder} has no config.json; pass the folder of a Hugging Face checkpoint")
    rotation = member(folder, _HADAMARD)
    if rotation is not None:
        raise UnsupportedError(
            f"{rotation} says that weights of the folder are stored rotated, which edgedec reads from GGUF files alone; use "
            "the GGUF file of the model, or a folder whose weights are not rotated"
        )
    config = language_config(config_path, read_object(config_path))
    vocab_size = config.get("vocab_size")
    if type(vocab_size) is not int or vocab_size < 1:
        raise BundleError(f"{config_path}: vocab_size must be a positive integer, not {shown(vocab_size)}")
    config, entries = translate(config_path, config, _find_entries(folder))
    tensors, read_tensor = _tensors(config_path, config, config.pop("quantization_config", None), entries)
    checked = read_tokenizer(tokenizer or find_tokenizer(folder, "tokenizer.json"), vocab_size)
    home = checked.path.parent
    settings_path = member(home, "tokenizer_config.json")
    settings = read_object(settings_path) if settings_path else {}
    generation_path = member(folder, "generation_config.json")
    generation = read_object(generation_path) if generation_path else {}

    known = checked.vocabulary
    bos_token, bos_id = _named_token(home, settings, "bos_token", known)
    eos_token, eos_id = _named_token(home, settings, "eos_token", known)
    bos_ids = _ids(config_path, config, "bos_token_id", vocab_size)
    eos_ids = [
        *(_ids(generation_path, generation, "eos_token_id", vocab_size) if generation_path else []),
        *_ids(config_path, config, "eos_token_id", vocab_size),
        *([] if eos_id is None else [eos_id]),
    ]
    if bos_id is None and bos_ids:
        bos_id = bos_ids[0]
        bos_token = None if "bos_token" in settings else known.id_to_token(bos_id)
    if eos_token is None and eos_ids and "eos_token" not in settings:
        eos_token = known.id_to_token(eos_ids[0])
    return Checkpoint(
        source=folder,
        config=config,
        tensors=tensors,
        read_tensor=read_tensor,
        tokenizer_json=checked.json,
        chat_template=_chat_template(home, settings),
        bos_token=bos_token,
        bos_token_id=bos_id,
        eos_token=eos_token,
        eos_token_ids=tuple(dict.fromkeys(eos_ids)),
    )


def _tensors(
    path: Path, config: dict[str, Any], quantization: object, entries: dict[str, TensorEntry]
) -> tuple[dict[str, TensorInfo], Callable[[str], NDArray[Any]]]:
    """Return the tensors that the entries represent, and the function that loads one by its name."""
    if quantization is None:
        makers = {name: StoredTensor(name=name, entry=entry) for name, entry in entries.items()}
        return {name: entry.info for name, entry in entries.items()}, Makers(makers)
    if not isinstance(quantization, dict):
        raise BundleError(f"{path}: quantization_config must be an object, not {shown(quantization)}")
    method = quantization.get("quant_method")
    if method != "bitnet":
        raise UnsupportedError(
            f"{path}: weights quantized with {shown(method)} are not read, only 'bitnet'; "
            "pass the float checkpoint that this one was made from"
        )
    return read_bitnet_tensors(path, config, quantization, entries)


def _find_entries(folder: Path) -> dict[str, TensorEntry]:
    """Return all tensors of the folder. A single file has priority over an index, as in ``transformers``."""
    whole, index = member(folder, _WEIGHTS), member(folder, _INDEX)
    if whole is not None:
        return read_entries(whole)
    if index is not None:
        return _sharded_entries(folder, index)
    if any(member(folder, name) for name in ("pytorch_model.bin", "pytorch_model.bin.index.json")):
        raise UnsupportedError(
            f"{folder} has only pickled weights (pytorch_model.bin), which can run code and are not read; "
            "save the model as safetensors"
        )
    raise BundleError(f"{folder} has neither {_WEIGHTS} nor {_INDEX}; the checkpoint is incomplete")


def _sharded_entries(folder: Path, index: Path) -> dict[str, TensorEntry]:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BundleError(
            f"{index}: weight_map must be an object with the file of each tensor, not {shown(weight_map)}"
        )
    shards: dict[str, dict[str, TensorEntry]] = {}
    for tensor, name in weight_map.items():
        where = f"{index}: tensor {shown(tensor)}"
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise BundleError(f"{where} must be in a .safetensors file of the folder itself, not {shown(name)}")
        if name not in shards:
            path = member(folder, name)
            if path is None:
                raise BundleError(f"{where} should be in {name}, which is missing; the checkpoint is incomplete")
            shards[name] = read_entries(path)
        if tensor not in shards[name]:
            raise BundleError(f"{where} should be in {name}, which does not have it")
    entries: dict[str, TensorEntry] = {}
    for name, shard in shards.items():
        for tensor, entry in shard.items():
            if tensor in entries:
                raise BundleError(f"{folder}: tensor {tensor!r} is in both {entries[tensor].path.name} and {name}")
            entries[tensor] = entry
    return entries


def _named_token(home: Path, settings: dict[str, Any], key: str, known: Tokenizer) -> tuple[str | None, int | None]:
    """Return a special token of ``tokenizer_config.json``, a string or an object with ``content``, and its id."""
    token = settings.get(key)
    if isinstance(token, dict):
        token = token.get("content")
    if token is None:
        return None, None
    where = f"{home / 'tokenizer_config.json'}: {key}"
    if not isinstance(token, str):
        raise BundleError(f"{where} must be a string, not {shown(token)}")
    token_id = known.token_to_id(token)
    if token_id is None:
        raise BundleError(f"{where} is {shown(token)}, which the tokenizer does not have")
    return token, token_id


def _ids(path: Path, values: dict[str, Any], key: str, vocab_size: int) -> list[int]:
    """Return the ids of a key that holds one token id, a list of ids, or null."""
    value = values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int and 0 <= item < vocab_size for item in ids):
        raise BundleError(f"{path}: {key} must be ids below vocab_size ({vocab_size}), not {shown(value)}")
    return ids


def _chat_template(home: Path, settings: dict[str, Any]) -> str | None:
    """Return the template of ``chat_template.jinja``, ``chat_template.json`` or ``tokenizer_config.json``, in this order."""
    jinja = member(home, "chat_template.jinja")
    if jinja is not None:
        return read_text(jinja, MAX_JSON_BYTES)
    where, value = home / "tokenizer_config.json", settings.get("chat_template")
    separate = member(home, "chat_template.json")
    if separate is not None:
        where, value = separate, read_object(separate).get("chat_template")
    if isinstance(value, list):
        defaults = [item for item in value if isinstance(item, dict) and item.get("name") == "default"]
        if not defaults:
            raise UnsupportedError(f'{where}: no chat template of the list is named "default"; rename the one to use')
        value = defaults[0].get("template")
    if value is not None and not isinstance(value, str):
        raise BundleError(f"{where}: chat_template must be text, not {shown(value)}")
    return value
