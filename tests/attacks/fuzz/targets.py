"""List the readers: the files that an input becomes, the function that reads them, and the origin of inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from unittest.mock import patch

from edgedec.quantize.readers.tokenizers import sentencepiece_model
from tests.attacks.fuzz import seeds, words
from tests.attacks.fuzz.framing import framed, unframed
from tests.attacks.fuzz.mutators.gguf import gguf
from tests.attacks.fuzz.mutators.json_text import json_text
from tests.attacks.fuzz.mutators.llama2c import llama2c
from tests.attacks.fuzz.mutators.pieces import lines, ranks, tokenizer_records
from tests.attacks.fuzz.mutators.protobuf import protobuf
from tests.attacks.fuzz.mutators.raw import Mutator, mutate_bytes
from tests.attacks.fuzz.mutators.safetensors import safetensors
from tests.attacks.fuzz.reading import read_checkpoint, read_folder, read_vocabulary
from tests.quantize.readers.support.make_checkpoints import hf_tokenizer, small_pieces, tokenizer_bin

__all__ = ["MAX_INPUT_BYTES", "TARGETS", "File", "Target"]

MAX_INPUT_BYTES = 1 << 15
_VOCAB_SIZE = 600  # rows of tokenizers alone: more than the seeds have


@dataclass(frozen=True, kw_only=True)
class File:
    """Describe a file that an input fills, and how its content is mutated."""

    name: str
    mutate: Mutator


@dataclass(frozen=True, kw_only=True)
class Target:
    """Describe one reader.

    Members:
        files: parts of an input (``framing``), in this order.
        beside: files that are the same for every input.
        read: reads the folder wholly, or raises.
        seeds: sound inputs.
        modules: modules of ``quantize/readers`` that the seeds run; a test checks it.
    """

    name: str
    files: tuple[File, ...]
    read: Callable[[Path], None]
    seeds: Callable[[], Iterable[bytes]]
    modules: frozenset[str]
    beside: Mapping[str, bytes] = field(default_factory=dict)

    def mutate(self, rng: Random, data: bytes) -> bytes:
        """Change one file according to its format, or the whole without; the result is never longer than inputs may
        be.
        """
        if rng.random() < 0.03:
            mutated = mutate_bytes(rng, data)
        else:
            contents = unframed(data, len(self.files))
            at = rng.randrange(len(contents))
            contents[at] = self.files[at].mutate(rng, contents[at])
            mutated = framed(contents)
        return mutated if len(mutated) <= MAX_INPUT_BYTES else data


def _checkpoint(name: str) -> Callable[[Path], None]:
    return lambda folder: read_checkpoint(folder / name)


def _vocabulary(name: str) -> Callable[[Path], None]:
    return lambda folder: read_vocabulary(folder / name, _VOCAB_SIZE)


def _folder(folder: Path) -> None:
    read_folder(folder, _VOCAB_SIZE)


def _ranks(folder: Path) -> None:
    """Read with as many ranks required as an input has room for."""
    with patch.object(sentencepiece_model, "_LLAMA3_RANKS", seeds.RANKS):
        read_vocabulary(folder / "tokenizer.model", _VOCAB_SIZE)


def _tokenizer_json() -> bytes:
    return json.dumps(hf_tokenizer()).encode()


_CONFIG = json_text(words.CONFIG)
_WEIGHTS = safetensors(words.TENSORS)
_GGUF = gguf(keys=words.GGUF_KEYS, words=words.GGUF_TEXTS, names=words.GGUF_TENSORS, architectures=words.ARCHITECTURES)
_WEIGHTS_NAME, _INDEX_NAME = "model.safetensors", "model.safetensors.index.json"
_FOLDER = ("config.json", "generation_config.json", "tokenizer_config.json", _WEIGHTS_NAME)
_SHARDS = tuple(f"model-0000{at}-of-00002.safetensors" for at in (1, 2))
_SHARDED = ("config.json", _INDEX_NAME, *_SHARDS)
_PACKED = ("config.json", _WEIGHTS_NAME)
_PARTS = tuple(f"m-0000{at}-of-00002.gguf" for at in (1, 2))
_SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json")
_TOKENIZER = {"tokenizer.json": _tokenizer_json()}

_COMMON = frozenset({"untrusted", "tokenizers/tokenizer_file", "tokenizers/charsmap"})
_OF_GGUF = (
    _COMMON
    | {"checkpoint", "gguf/checkpoint", "gguf/blocks", "gguf/header", "gguf/models", "gguf/names", "gguf/parts"}
    | {
        "gguf/hadamard",
        "gguf/keys",
        "gguf/rotation",
        "gguf/special_tokens",
        "gguf/tokenizer",
        "tokenizers/piece_tokenizer",
    }
)
_OF_PIECES = frozenset({"tokenizers/sentencepiece_model", "tokenizers/piece_tokenizer"})
_OF_SIDE_FILES = _COMMON | {
    "chat_templates",
    "tokenizers/folder",
    "tokenizers/token_settings",
    "tokenizers/transformers_class",
    "tokenizers/vocabulary_files",
}
_OF_FOLDERS = _OF_SIDE_FILES | {"checkpoint", "config_keys", "huggingface", "huggingface_layout", "safetensors_file"}


def _files(names: Iterable[str], mutate: Mutator) -> tuple[File, ...]:
    return tuple(File(name=name, mutate=mutate) for name in names)


TARGETS = (
    Target(
        name="gguf",
        files=_files(["model.gguf"], _GGUF),
        read=_checkpoint("model.gguf"),
        seeds=seeds.gguf_files,
        modules=_OF_GGUF | {"tokenizers/byte_tokenizer", "gguf/delta_net", "gguf/i2s", "gguf/trits"},
    ),
    Target(
        name="gguf-parts",
        files=_files(_PARTS, _GGUF),
        read=_checkpoint(_PARTS[0]),
        seeds=seeds.gguf_parts,
        modules=_OF_GGUF,
    ),
    Target(
        name="huggingface",
        files=(*_files(_FOLDER[:-1], _CONFIG), File(name=_WEIGHTS_NAME, mutate=_WEIGHTS)),
        beside=_TOKENIZER,
        read=_checkpoint(""),
        seeds=partial(seeds.huggingface_folders, _FOLDER),
        modules=_OF_FOLDERS,
    ),
    Target(
        name="sharded",
        files=(*_files(_SHARDED[:2], json_text((*words.CONFIG, *_SHARDS))), *_files(_SHARDS, _WEIGHTS)),
        beside=_TOKENIZER,
        read=_checkpoint(""),
        seeds=partial(seeds.sharded_folders, _SHARDED),
        modules=_OF_FOLDERS,
    ),
    Target(
        name="bitnet",
        files=(File(name=_PACKED[0], mutate=_CONFIG), File(name=_PACKED[1], mutate=_WEIGHTS)),
        beside=_TOKENIZER,
        read=_checkpoint(""),
        seeds=partial(seeds.bitnet_folders, _PACKED),
        modules=_OF_FOLDERS | {"bitnet"},
    ),
    Target(
        name="llama2c",
        files=_files(["model.bin"], llama2c),
        beside={"tokenizer.bin": tokenizer_bin(small_pieces())},
        read=_checkpoint("model.bin"),
        seeds=seeds.llama2c_files,
        modules=_COMMON | {"checkpoint", "llama2c", "tokenizers/llama2c_tokenizer"},
    ),
    Target(
        name="tokenizer-bin",
        files=_files(["tokenizer.bin"], tokenizer_records),
        read=_vocabulary("tokenizer.bin"),
        seeds=seeds.tokenizer_bins,
        modules=_COMMON | {"tokenizers/llama2c_tokenizer"},
    ),
    Target(
        name="vocab-listing",
        files=_files(["tokenizer.vocab"], lines),
        read=_vocabulary("tokenizer.vocab"),
        seeds=seeds.vocab_listings,
        modules=_COMMON | {"tokenizers/llama2c_tokenizer"},
    ),
    Target(
        name="sentencepiece",
        files=_files(["tokenizer.model"], protobuf),
        read=_vocabulary("tokenizer.model"),
        seeds=seeds.sentencepiece_models,
        modules=_COMMON | _OF_PIECES,
    ),
    Target(
        name="ranks",
        files=_files(["tokenizer.model"], ranks),
        read=_ranks,
        seeds=seeds.rank_lists,
        modules=_COMMON | {"tokenizers/sentencepiece_model", "tokenizers/byte_tokenizer"},
    ),
    Target(
        name="tokenizer-json",
        files=_files(["tokenizer.json"], json_text(words.TOKENIZER)),
        read=_vocabulary("tokenizer.json"),
        seeds=seeds.tokenizer_texts,
        modules=_COMMON,
    ),
    *(
        Target(
            name=name,
            files=(File(name=vocabulary, mutate=mutate), *_files(_SIDE_FILES, json_text(words.SETTINGS))),
            read=_folder,
            seeds=partial(seeds.tokenizer_folders, (vocabulary, *_SIDE_FILES)),
            modules=_OF_SIDE_FILES | more,
        )
        for name, vocabulary, mutate, more in (
            ("tokenizer-folder", "tokenizer.json", json_text(words.TOKENIZER), frozenset[str]()),
            ("sentencepiece-folder", "tokenizer.model", protobuf, _OF_PIECES),
        )
    ),
)
