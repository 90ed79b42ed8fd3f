"""The program of a model on a GPU: buffers, kernels, and the order in which kernels run on buffers.

``lowering.py`` makes a program of a graph. Two executors run it: ``executor.py`` through wgpu-native, and the JavaScript
runtime in a browser, which reads ``GpuProgram.as_json``. Both do the same:

1. Make every buffer with its ``nbytes``, all with the usages STORAGE, COPY_SRC and COPY_DST. Fill those of the kind
   ``constant``, which come from one file in the order of the program (``constant_offsets``). All other buffers begin as
   zeros.
2. Make one pipeline for each kernel, with the entry point ``main``, and one bind group for each step: the buffers of the
   step are group 0, bindings 0, 1, 2 and so on.
3. For each submission of n rows of some sequences, of which r rows want logits:

   - write the header (``head``: the words of ``HeadLayout``, see ``kernels/head.py``) to the buffer ``head``,
   - write the embeddings of rows without a token id, float32 [m, width], to ``embeds``; row id -k selects the k-th,
   - if rows of the cache have to be moved or blocks to be copied, write pairs to ``moves``: the number of pairs, then from
     and to of each pair, as slots (slot = 16 * block + row in the block), all uint32. They apply in their order, before all
     other steps,
   - encode one compute pass with the steps in their order, and leave out those whose ``when`` does not hold:
     ``moves`` (there are pairs), ``pass`` (always), ``results`` (r > 0), ``top`` (r > 0, and the likeliest tokens are
     wanted in place of whole rows of logits), ``sums`` (as ``top``, and the sums of exponentials are wanted, too). A step
     whose number of workgroups is 0 in a dimension is left out, too. The workgroups of a step are a function of its
     kernel's ``groups``, n and r alone,
   - copy ``logits`` float32 [r, vocab], or ``top_ids`` int32 and ``top_logits`` float32 [r, top_k] each and perhaps
     ``top_sums`` uint32 [r, sum_parts, 2], to a buffer that the host can map, submit once, and map it.

4. A row of a submission is committed by moving its keys and values from its slot to the slot of its new place; if it is
   there already, nothing is done. Rows that are not committed are overwritten by the next pass.

Sequences divide the cache into blocks of 16 rows; the header has the table of blocks of each sequence. A browser that writes
one text uses the table 0, 1, 2 ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.kernel import Kernel

__all__ = ["CONSTANT_ALIGNMENT", "TOP_K", "GpuBuffer", "GpuProgram", "Kind", "Step", "Tap", "When"]

TOP_K = 16  # likeliest tokens that the device finds for each row; drafters that learn from them want ten
CONSTANT_ALIGNMENT = 256  # bytes: each constant begins at a multiple, in the file of all constants
_VERSION = 1

Kind = Literal["input", "constant", "cache", "activation", "output"]
When = Literal["moves", "pass", "results", "top", "sums"]


@dataclass(frozen=True, kw_only=True)
class GpuBuffer:
    """A buffer of the device.

    Members:
        name: its name in messages and in plans; ``lowering.constants`` names constants by it.
        nbytes: its size, a multiple of 4.
        kind: ``input`` is written by the host before a pass; ``constant`` once; ``cache`` holds keys and values;
            ``activation`` holds values of one pass; ``output`` is read by the host after a pass.
        item: item of the memory plan to which its bytes belong.
    """

    name: str
    nbytes: int
    kind: Kind
    item: str


@dataclass(frozen=True, kw_only=True)
class Step:
    """One dispatch.

    Members:
        name: the operations of the graph that it computes, for messages.
        kernel: index of its kernel in ``GpuProgram.kernels``.
        buffers: index of the buffer of each binding.
        when: condition under which the step runs.
    """

    name: str
    kernel: int
    buffers: tuple[int, ...]
    when: When = "pass"


@dataclass(frozen=True, kw_only=True)
class Tap:
    """A value of the graph that passes can return, float32 [rows, width].

    Members:
        buffer: index of its buffer.
        width: its columns.
        results: True if it has the r rows with logits only, and not all n rows.
    """

    buffer: int
    width: int
    results: bool


@dataclass(frozen=True, kw_only=True)
class GpuProgram:
    """A model as buffers, kernels and steps.

    Members:
        rows: N, most rows of a submission.
        results: R, most rows of logits of a submission.
        cache_blocks: blocks of 16 rows of the cache, all sequences together.
        positions: bound of positions, and most rows of a sequence.
        vocab: V, logits of a row.
        width: columns of an embedding.
        top_k: likeliest tokens of a row in ``top_ids`` and ``top_logits``.
        sum_parts: parts of a row in ``top_sums``, each with the lower and the upper word of its sum.
        most_moves: most pairs in ``moves``.
        embeds_only: True if the embedding is not on the device, so that every row's id is negative and its embedding in
            ``embeds``.
        layout: places in the header.
        buffers, kernels, steps: see the module.
        head, embeds, moves, logits, top_ids, top_logits, top_sums: indices of the buffers of these names.
        features: index of the buffer of values that ride beside the ids; None: the model reads none.
        taps: the values that passes can return, by name.
    """

    rows: int
    results: int
    cache_blocks: int
    positions: int
    vocab: int
    width: int
    top_k: int
    sum_parts: int
    most_moves: int
    embeds_only: bool
    layout: HeadLayout
    buffers: tuple[GpuBuffer, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    head: int
    embeds: int
    moves: int
    logits: int
    top_ids: int
    top_logits: int
    top_sums: int
    features: int | None = None
    taps: Mapping[str, Tap] = field(default_factory=dict)

    @property
    def readback_bytes(self) -> int:
        """Size of the buffer that the host maps: rows of logits or the likeliest tokens, and all taps."""
        rows = 4 * self.results * max(self.vocab, 2 * (self.top_k + self.sum_parts))
        return rows + sum(4 * tap.width * (self.results if tap.results else self.rows) for tap in self.taps.values())

    def constant_offsets(self) -> dict[int, int]:
        """Return the first byte of each constant, by index of its buffer, in one file that holds all of them in order."""
        offsets, end = dict[int, int](), 0
        for index, buffer in enumerate(self.buffers):
            if buffer.kind == "constant":
                offsets[index] = end
                end += -(-buffer.nbytes // CONSTANT_ALIGNMENT) * CONSTANT_ALIGNMENT
        return offsets

    def item_bytes(self) -> dict[str, int]:
        """Return the bytes of the buffers by item of the memory plan."""
        items: dict[str, int] = {}
        for buffer in self.buffers:
            items[buffer.item] = items.get(buffer.item, 0) + buffer.nbytes
        return items

    def as_json(self) -> dict[str, Any]:
        """Return the program as plain values: the members of this module's classes under their own names.

        ``constants`` is added: {index of the buffer: first byte in the file of all constants}.
        """
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        offsets = {str(index): offset for index, offset in self.constant_offsets().items()}
        return {"version": _VERSION, **plain, "constants": offsets}
