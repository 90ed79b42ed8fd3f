"""Write the training text of the embedded pair in parts when they are needed; a part depends on its number alone."""

from __future__ import annotations

import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgedec.bundle.atomic import new_file
from edgedec.quantize.demo_pair.data import documents, pack
from edgedec.quantize.distil.schedule import Batches

__all__ = ["ShardedBatches", "Shards", "row_starts"]


_POLL_S = 0.5


def row_starts(text: NDArray[np.uint16], length: int) -> NDArray[np.int64]:
    """Return the positions where rows of ``length`` tokens may begin: the first tokens of the documents.

    A document that is longer than a row has further positions, half a row apart, so that all of it is trained on.
    """
    starts = np.flatnonzero(text == 0)
    ends = np.append(starts[1:], len(text))
    half = length // 2
    parts = [starts]
    for at in range(1, int((ends - starts).max()) // half + 1):
        later = starts + at * half
        parts.append(later[later + half < ends])
    return np.sort(np.concatenate(parts))


def _write(tokenizer_json: str, first: int, count: int, file: Path) -> None:
    text = pack(documents(Tokenizer.from_str(tokenizer_json), range(first, first + count)))
    with new_file(file) as path, path.open("wb") as stream:
        np.save(stream, text)


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Files ``folder/train-k.npy`` with the token ids of the documents of the seeds from ``k * documents`` on.

    While one shard is in use, ``ahead`` separate processes write the next ones.
    """

    folder: Path
    tokenizer_json: str
    documents: int
    writes: bool = True  # False: another process writes the shards, and this one waits for them
    ahead: int = 1  # shards that are written in advance, by as many processes
    _ahead: dict[int, Future[None]] = field(default_factory=dict, init=False)
    _last: dict[tuple[int, int], tuple[NDArray[np.uint16], NDArray[np.int64]]] = field(default_factory=dict, init=False)
    _pool: list[ProcessPoolExecutor] = field(default_factory=list, init=False)

    def file(self, shard: int) -> Path:
        """Return the path of the shard, which may not exist yet."""
        return self.folder / f"train-{shard:03}.npy"

    def read(self, shard: int) -> NDArray[np.uint16]:
        """Return the token ids of the shard, uint16 [tokens]; write the shard first if it does not exist."""
        self.prepare(shard)
        while not self.writes and not self.file(shard).exists():
            time.sleep(_POLL_S)
        waiting = self._ahead.pop(shard, None)
        if waiting is not None:
            waiting.result()
        text: NDArray[np.uint16] = np.load(self.file(shard))
        return text

    def rows(self, shard: int, length: int) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
        """Return the shard and the positions where its rows may begin. The most recent result is kept."""
        if (shard, length) not in self._last:
            text = self.read(shard)
            self._last.clear()
            self._last[shard, length] = text, row_starts(text, length)
        return self._last[shard, length]

    def prepare(self, shard: int) -> None:
        """Start writing the shard unless it exists or is being written."""
        if not self.writes or shard in self._ahead or self.file(shard).exists():
            return
        if not self._pool:
            self._pool.append(ProcessPoolExecutor(self.ahead, mp_context=get_context("spawn")))
        first = shard * self.documents
        self._ahead[shard] = self._pool[0].submit(_write, self.tokenizer_json, first, self.documents, self.file(shard))

    def close(self) -> None:
        """End the processes that write shards in advance."""
        for pool in self._pool:
            pool.shutdown(cancel_futures=True)
        self._pool.clear()


@dataclass(frozen=True, kw_only=True)
class ShardedBatches(Batches):
    """Batches that take ``steps_per_shard`` steps from each shard, in order, beginning with shard ``first_shard``.

    ``train`` is the first shard.
    """

    shards: Shards
    steps_per_shard: int
    first_shard: int = 0
    last_shard: int = 0

    def at(self, step: int, steps: int) -> NDArray[np.int64]:
        """Return the rows of a step: int64 [rows, length + 1]."""
        shard = min(self.first_shard + step // self.steps_per_shard, self.last_shard)
        for later in range(shard + 1, min(shard + self.shards.ahead, self.last_shard) + 1):
            self.shards.prepare(later)
        text, starts = self.shards.rows(shard, self.length)
        length = self.long_length if self.long_length and step >= steps * (1 - self.long_share) else self.length
        rng = np.random.default_rng((self.seed, step))
        within = int(np.searchsorted(starts, len(text) - length))
        rows = starts[rng.integers(0, within, self.tokens // length)]
        return np.stack([text[start : start + length + 1] for start in rows]).astype(np.int64)
