"""Define the interface between the readers of checkpoint formats and the code that uses checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.families import build_graph, context_size
from edgedec.graph.graph import Graph
from edgedec.schemes import Int4Scheme

__all__ = ["Checkpoint", "Int4Maker", "Makers", "TensorInfo", "TernaryMaker", "Trits", "TwoBitMaker", "model_graph"]

Maker = Callable[[], NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """Shape and type of a tensor after loading.

    ``dtype`` is ``float32``, ``float16`` or ``bfloat16``; any other value is the file's own name for a type that
    ``Checkpoint.load`` refuses. Such tensors are listed because many checkpoints carry buffers that no model reads.
    ``int4`` is the scheme of a matrix whose maker is an ``Int4Maker``, and ``two_bit`` is true if the maker is a
    ``TwoBitMaker``.
    """

    shape: tuple[int, ...]
    dtype: str
    int4: Int4Scheme | None = None
    two_bit: bool = False


class Trits(NamedTuple):
    """A ternary matrix as a file stores it.

    ``trits`` int8 [out, in] are -1, 0 or 1; those of ``TwoBitMaker.codes`` are 2, too. ``scales`` are float32 () for one
    scale and ``group_size`` 0, and otherwise [out, groups], one for each ``group_size`` columns. They may be negative.
    """

    trits: NDArray[np.int8]
    scales: NDArray[np.float32] | np.float32
    group_size: int = 0


@runtime_checkable
class TernaryMaker(Protocol):
    """Loads a matrix that is known to be ternary, as float32 or as trits, which take a quarter of the memory."""

    def __call__(self) -> NDArray[Any]: ...

    def trits(self) -> Trits: ...


@runtime_checkable
class TwoBitMaker(TernaryMaker, Protocol):
    """Loads a matrix that the file stores as codes of two bits. ``trits`` refuses it if a code has the value 2."""

    def codes(self) -> Trits: ...


@runtime_checkable
class Int4Maker(Protocol):
    """Loads a matrix that the file stores as 4-bit codes, as float32 or as the parts of an ``Int4Scheme``."""

    def __call__(self) -> NDArray[Any]: ...

    def int4(self) -> dict[str, NDArray[Any]]: ...


@dataclass(frozen=True)
class Makers:
    """Implementation of ``read_tensor`` with one function per tensor, which can be pickled and called in other processes."""

    by_name: Mapping[str, Maker]

    def __call__(self, name: str) -> NDArray[Any]:
        return self.by_name[name]()


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A trained model as its files describe it. Opening it reads only headers; ``load`` reads one tensor.

    ``config`` has the content of a Hugging Face ``config.json`` without ``quantization_config``, because ``load`` unpacks
    weights. Readers of other formats create it, with ``rope_interleaved`` true if rotary pairs are neighbours (2i, 2i+1)
    instead of halves (i, i + head_dim / 2). ``tensors`` has Hugging Face names. Ids in ``bos_token_id`` and
    ``eos_token_ids`` lie inside the vocabulary; generation ends at any of ``eos_token_ids``. The post-processor in
    ``tokenizer_json`` determines whether BOS is prepended; ``tokenizer_json`` has neither padding nor truncation.
    """

    source: Path
    config: dict[str, Any]
    tensors: Mapping[str, TensorInfo]
    read_tensor: Callable[[str], NDArray[Any]]
    tokenizer_json: str
    chat_template: str | None
    bos_token: str | None
    bos_token_id: int | None
    eos_token: str | None
    eos_token_ids: tuple[int, ...]

    def load(self, name: str) -> NDArray[Any]:
        """Load one tensor, C-contiguous, of ``tensors[name].shape`` and dtype (bfloat16 is ``ml_dtypes.bfloat16``).

        Nothing is cached. Peak memory is the tensor itself, and up to half as much in addition while codes or bfloat16
        values are expanded.

        Raises:
            BundleError: there is no such tensor, or the file has changed or is damaged.
            UnsupportedError: the tensor's type is not a float type that edgedec reads.
        """
        if name not in self.tensors:
            raise BundleError(f"{self.source}: there is no tensor {name!r}; the checkpoint is incomplete")
        return self.read_tensor(name)


def model_graph(source: Path, config: Mapping[str, Any]) -> Graph:
    """Build the graph of a configuration. Errors name ``source``, because those of the families name no file.

    Raises:
        BundleError, UnsupportedError: see ``build_graph`` and ``context_size``.
    """
    try:
        context_size(config)  # checked here, because otherwise it would fail only when the model is run
        return build_graph(config)
    except (BundleError, UnsupportedError) as error:
        raise type(error)(f"{source}: {error}") from None
