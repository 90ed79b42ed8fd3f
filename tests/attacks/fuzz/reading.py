"""Read wholly: load every tensor, build the graph, and compare what a checkpoint promises with what it holds."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from edgedec.families import context_size
from edgedec.graph.ops import Rope
from edgedec.quantize.pipeline import checkpoint_graph
from edgedec.quantize.readers import Checkpoint, open_checkpoint
from edgedec.quantize.readers.checkpoint import Makers, TwoBitMaker
from edgedec.quantize.readers.tokenizers.folder import end_ids, read_folder_tokenizer
from edgedec.quantize.readers.tokenizers.tokenizer_file import read_tokenizer

__all__ = ["read_checkpoint", "read_folder", "read_vocabulary"]

_TEXT = "the <unk></s> Ω\u0301 \U0001f600\u2581 \u200d\r\n\ufb01 12"


def read_checkpoint(path: Path) -> None:
    """Read a checkpoint wholly.

    Raises:
        EdgedecError: the reader's refusal.
        AssertionError: the reader broke its promise.
    """
    checkpoint = open_checkpoint(path)
    for name, info in checkpoint.tensors.items():
        array = checkpoint.load(name)
        assert (array.shape, array.dtype.name) == (info.shape, info.dtype), "a tensor is what was said of it"
        assert array.flags.c_contiguous
    vocab_size = checkpoint.config["vocab_size"]
    special_ids = [*checkpoint.eos_token_ids, *([] if checkpoint.bos_token_id is None else [checkpoint.bos_token_id])]
    assert all(type(token_id) is int and 0 <= token_id < vocab_size for token_id in special_ids), (
        "ids lie inside the vocabulary"
    )
    # the form in which a bundle will hold it
    json.dumps(checkpoint.config, allow_nan=False, ensure_ascii=False).encode()
    assert "quantization_config" not in checkpoint.config
    _check_tokenizer(checkpoint.tokenizer_json)
    assert checkpoint.chat_template is None or checkpoint.chat_template.encode() is not None
    graph, _ = checkpoint_graph(checkpoint)  # from here on tensors have the shapes of the model
    _check_trits(checkpoint)
    assert all(
        math.isfinite(token_id)
        for op in graph.operations
        if isinstance(op, Rope)
        for token_id in op.inverse_frequencies
    ), "rotations are finite"
    assert context_size(checkpoint.config) >= 1


def _check_trits(checkpoint: Checkpoint) -> None:
    """Check that a ternary matrix is the same, loaded as numbers or as trits and scales."""
    if not isinstance(checkpoint.read_tensor, Makers):
        return
    for name, maker in checkpoint.read_tensor.by_name.items():
        if hasattr(maker, "trits"):  # only TernaryMaker, which is slow to call
            trits, scales, group_size = maker.codes() if isinstance(maker, TwoBitMaker) else maker.trits()
            width = group_size or trits.shape[1]
            factors = np.asarray(scales).reshape(-1, 1) if np.ndim(scales) == 0 else np.asarray(scales)
            spread = factors[:, np.arange(trits.shape[1]) // width]
            assert np.array_equal(trits * spread, checkpoint.load(name)), "trits and numbers are the same matrix"


def _check_tokenizer(text: str) -> None:
    """Check that it can be read again out of a bundle, and encodes any text."""
    Tokenizer.from_str(text).encode(_TEXT)
    tokenizer = json.loads(text)
    assert tokenizer.get("padding") is None, "nothing is padded"
    assert tokenizer.get("truncation") is None, "nothing is cut off"
    text.encode()


def read_vocabulary(path: Path, vocab_size: int) -> None:
    """Read a tokenizer alone, of a model of ``vocab_size`` rows."""
    checked = read_tokenizer(path, vocab_size)
    _check_tokenizer(checked.json)
    assert all(0 <= index < vocab_size for index in checked.vocabulary.get_vocab().values())


def read_folder(folder: Path, vocab_size: int) -> None:
    """Read the tokenizer of a folder, of a model of ``vocab_size`` rows, and all that its files say of it."""
    read = read_folder_tokenizer(folder, vocab_size, {})
    _check_tokenizer(read.checked.json)
    ids = [*read.checked.vocabulary.get_vocab().values(), *end_ids(folder, {}, vocab_size, read)]
    assert all(0 <= index < vocab_size for index in ids), "ids lie inside the vocabulary"
    template = read.chat_template(read.token_id("bos_token"), read.token_id("eos_token"))
    assert template is None or template.encode() is not None
