"""Test the parts of the training text: each is a function of its number, written once, and rows begin at documents."""

from __future__ import annotations

import threading
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from edgedec.quantize.demo_pair.data import documents, pack, train_tokenizer
from edgedec.quantize.demo_pair.shards import ShardedBatches, Shards, row_starts
from edgedec.quantize.demo_pair.talk import conversation


@cache
def tokenizer() -> Tokenizer:
    return train_tokenizer((text for seed in range(60) for turn in conversation(seed) for text in turn), 512)


def shards(folder: Path, *, writes: bool = True, ahead: int = 1) -> Shards:
    return Shards(folder=folder, tokenizer_json=tokenizer().to_str(), documents=20, writes=writes, ahead=ahead)


def test_rows_begin_at_documents_and_inside_long_ones() -> None:
    text = np.ones(100, np.uint16)
    text[[0, 10, 70]] = 0
    # Documents have 10, 60 and 30 tokens, and rows 20. Parts of the second document begin half a row apart.
    assert row_starts(text, 20).tolist() == [0, 10, 20, 30, 40, 50, 70, 80]
    assert row_starts(text, 60).tolist() == [0, 10, 70]


def test_every_token_is_in_some_row() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        text = np.ones(2000, np.uint16)
        text[[0, *rng.integers(1, 2000, 12)]] = 0
        for length in (64, 128, 512):
            covered = np.zeros(len(text), bool)
            for start in row_starts(text, length):
                covered[start : start + length] = True
            assert covered.all()


@pytest.mark.thorough
def test_a_shard_holds_the_documents_of_its_seeds(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    try:
        assert np.array_equal(parts.read(2), pack(documents(tokenizer(), range(40, 60))))
        before = parts.file(2).stat().st_mtime_ns
        assert np.array_equal(shards(tmp_path).read(2), parts.read(2))
        assert parts.file(2).stat().st_mtime_ns == before
    finally:
        parts.close()


@pytest.mark.thorough
def test_a_process_that_does_not_write_waits(tmp_path: Path) -> None:
    result: list[int] = []
    reader = threading.Thread(target=lambda: result.append(len(shards(tmp_path, writes=False).read(0))), daemon=True)
    reader.start()
    time.sleep(0.2)
    assert not result
    assert not list(tmp_path.iterdir())
    writer = shards(tmp_path)
    try:
        text = writer.read(0)
    finally:
        writer.close()
    reader.join(20)
    assert result == [len(text)]


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("step", [0, 3, 4, 7, 11])
def test_a_step_takes_its_rows_from_its_shard(tmp_path: Path, step: int) -> None:
    parts = shards(tmp_path)
    try:
        texts = [parts.read(shard) for shard in range(3)]
        batches = ShardedBatches(
            train=texts[0], valid=texts[0], shards=parts, steps_per_shard=4, last_shard=1, tokens=128, length=32
        )
        rows = batches.at(step, 12)
        assert rows.shape == (4, 33)
        assert np.array_equal(rows, batches.at(step, 12))
        text = texts[min(step // 4, 1)]
        starts = row_starts(text, 32)
        assert all(any(np.array_equal(row, text[start : start + 33]) for start in starts) for row in rows)
    finally:
        parts.close()


@pytest.mark.thorough
def test_several_shards_are_written_in_advance(tmp_path: Path) -> None:
    parts = shards(tmp_path, ahead=3)
    try:
        text = parts.read(0)
        batches = ShardedBatches(
            train=text, valid=text, shards=parts, steps_per_shard=4, last_shard=4, tokens=128, length=32
        )
        batches.at(0, 20)
        assert sorted(parts._ahead) == [1, 2, 3]
        for shard in (1, 2, 3):
            parts._ahead[shard].result()
        # A shard does not depend on who wrote it, or on what was written beside it.
        assert np.array_equal(parts.read(3), pack(documents(tokenizer(), range(60, 80))))
        batches.at(12, 20)
        assert sorted(parts._ahead)[-1] == 4
    finally:
        parts.close()
