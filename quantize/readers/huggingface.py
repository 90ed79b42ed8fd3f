"""Read Hugging Face folders: ``config.json``, safetensors (sharded or not), ``tokenizer.json`` and related files."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.bitnet import read_bitnet_tensors
from edgedec.quantize.readers.checkpoint import Checkpoint, Makers, TensorInfo
from edgedec.quantize.readers.config_keys import note_unread_keys
from edgedec.quantize.readers.huggingface_layout import language_config, translate
from edgedec.quantize.readers.safetensors_file import StoredTensor, TensorEntry, read_entries
from edgedec.quantize.readers.tokenizers.folder import end_ids, read_folder_tokenizer, token_ids
from edgedec.quantize.readers.untrusted import member, read_object, shown

__all__ = ["read_huggingface"]

log = logging.getLogger(__name__)

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
    stated = read_object(config_path)
    config = language_config(config_path, stated)
    vocab_size = config.get("vocab_size")
    if type(vocab_size) is not int or vocab_size < 1:
        raise BundleError(f"{config_path}: vocab_size must be a positive integer, not {shown(vocab_size)}")
    config, entries = translate(config_path, config, _find_entries(folder))
    note_unread_keys(config_path, config)
    tensors, read_tensor = _tensors(config_path, config, config.pop("quantization_config", None), entries)
    read = read_folder_tokenizer(tokenizer or folder, vocab_size, stated if tokenizer is None else None)
    bos_ids = token_ids(config_path, config, "bos_token_id", vocab_size)
    bos = read.token_id("bos_token")
    bos = bos_ids[0] if bos is None and bos_ids else bos
    eos = end_ids(folder, config, vocab_size, read)
    return Checkpoint(
        source=folder,
        config=config,
        tensors=tensors,
        read_tensor=read_tensor,
        tokenizer_json=read.checked.json,
        chat_template=read.chat_template(bos, eos[0] if eos else None),
        bos_token=read.names.get("bos_token"),
        bos_token_id=bos,
        eos_token=read.names.get("eos_token"),
        eos_token_ids=eos,
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
    absent = [tensor for tensor, name in weight_map.items() if tensor not in shards[name]]
    if absent:  # buffers that older programs saved; what the model needs is missed later, by name
        log.warning("%s: names %d tensors that no file has, such as %s", index, len(absent), shown(absent[0]))
    entries: dict[str, TensorEntry] = {}
    for name, shard in shards.items():
        for tensor, entry in shard.items():
            if tensor in entries:
                raise BundleError(f"{folder}: tensor {tensor!r} is in both {entries[tensor].path.name} and {name}")
            entries[tensor] = entry
    return entries
