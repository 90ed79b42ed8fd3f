"""The weights of the CPU target: how much memory they take, and how they are loaded.

All of them are in memory, or ``Limits.weight_bytes`` leaves room for a part, and the others are streamed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import Tensor
from edgedec.bundle.row_reader import RowReader
from edgedec.environment import FUSED
from edgedec.errors import DeviceError
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Linear
from edgedec.onnx.emitter import packed_names as onnx_names
from edgedec.onnx.fusion import FusedProgram
from edgedec.onnx.lowering import emit
from edgedec.onnx.ops.linear import NARROW
from edgedec.onnx.recurrent_layout import recurrent_layout
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.weights.huge_pages import LEAST_BYTES, FileReader, huge_page_bytes
from edgedec.runtime.kernels.weights.layout_cache import Layout, layout_bytes, open_layout
from edgedec.runtime.kernels.weights.weight_parts import (
    PartSizes,
    WeightSplit,
    packed_names,
    split_weights,
    weight_parts,
)
from edgedec.runtime.kernels.weights.weight_stream import WeightStream
from edgedec.runtime.model_graph import bundle_graph, embedding_name
from edgedec.runtime.protocols import Limits
from edgedec.runtime.targets._footprint import check_one_file, read_weights, widest_value
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, TernaryScheme
from edgedec.schemes.part import StoredPart

__all__ = [
    "NOTHING_LENT",
    "FixedSizes",
    "LentWeights",
    "LoadedWeights",
    "ProgramRoom",
    "fixed_sizes",
    "is_fused",
    "least_weights",
    "load_weights",
    "program_room",
    "resident_bytes",
    "stored_names",
    "weight_items",
    "weight_split",
]

_LOADED = "loaded_weights"  # key of ``Bundle.derived`` for a weak reference to the weights that are in memory
_MAPPED_BYTES = 256 << 10  # smaller parts of the file are read, and not mapped, which would take whole pages


@dataclass(frozen=True, kw_only=True)
class LoadedWeights:
    """The weights that a session receives.

    Members:
        initializers: arrays by the name in the ONNX model.
        packed: bytes of codes, and number of scales, of each ternary and int4 matrix.
        stream: reads what ``initializers`` only have addresses for; None: all weights are in memory.
        rows: reads rows of the embedding.
    """

    initializers: Mapping[str, NDArray[Any]]
    packed: Mapping[str, tuple[int, int]]
    stream: WeightStream | None
    rows: RowReader


class LentWeights(NamedTuple):
    """The weights that a draft model has from its target, which has them in memory.

    Members:
        names: names in the target by the draft's own names.
        rows: True if the reader of the embedding's rows is the target's, too.
    """

    names: Mapping[str, str]
    rows: bool


NOTHING_LENT = LentWeights({}, False)


class ProgramRoom(NamedTuple):
    """The size of the buffers within a program.

    Members:
        floats: for each row of a pass.
        results: more of them for each row with logits.
    """

    floats: int
    results: int


def load_weights(
    bundle: Bundle,
    kernels: Kernels,
    graph: Graph,
    limits: Limits,
    files: FileReader,
    lent: LentWeights = NOTHING_LENT,
) -> LoadedWeights:
    """Load the weights, except float matrices that ONNX Runtime multiplies, which it maps itself.

    Args:
        files: reads them; the arrays have their values when it has finished.
        lent: weights that the target has in memory, which are not loaded again.

    Raises:
        DeviceError: the disk cannot be read for streaming, or the target that lends weights is not in memory.
        EdgedecError: ``open_layout`` raised it.
    """
    target = _loaded_target(bundle) if lent.names or lent.rows else None
    split, stream = weight_split(bundle, graph, limits), None
    streamed = set() if split is None else {part.matrix for part in split.parts}
    initializers = _stored_arrays(bundle, graph, lent)
    matrices = sorted(read_weights(graph) - lent.names.keys())
    stored = [name for name in matrices if isinstance(bundle.tensors[name].scheme, Int8Scheme)]
    for name in stored:  # first, because they are read while the layout is checked
        tensor = bundle.tensors[name]
        if name in streamed or tensor.count < LEAST_BYTES or not huge_page_bytes():
            continue  # it is streamed, or mapped already
        codes = files.begin(bundle.holder(name)[0].weights_file, tensor.offsets["codes"], tensor.count)
        initializers |= _int8_initializer(name, tensor, codes)
    names = [name for name in packed_names(graph, bundle) if name not in lent.names]
    layout = open_layout(bundle, kernels, names) if names else None
    if split is not None:
        path = bundle.weights_file if layout is None else layout.path
        stream = WeightStream(kernels, split, layout=path, weights=bundle.weights_file)
        for name in streamed.intersection(stored):
            initializers |= _int8_initializer(name, bundle.tensors[name], stream.matrices[name])
    packed: dict[str, tuple[int, int]] = {}
    for name, (codes, scale) in _packed_arrays(layout, stream, files).items():
        parts = (codes,) if scale is None else (codes, scale)
        initializers |= dict(zip(onnx_names(name), parts, strict=False))
        packed[name] = (codes.size, len(parts) - 1)
    if target is not None:
        for name, theirs in lent.names.items():
            initializers |= _renamed(target.initializers, theirs, name)
            if theirs in target.packed:
                packed[name] = target.packed[theirs]
    rows = target.rows if target is not None and lent.rows else bundle.row_reader(embedding_name(graph))
    loaded = LoadedWeights(initializers=initializers, packed=packed, stream=stream, rows=rows)
    if stream is None:
        bundle.derived[_LOADED] = weakref.ref(loaded)
    return loaded


def _loaded_target(bundle: Bundle) -> LoadedWeights:
    """Return the weights of the target that lends tensors to a draft model.

    Raises:
        DeviceError: they are not in memory.
    """
    assert bundle.lender is not None
    reference = bundle.lender.derived.get(_LOADED)
    loaded: LoadedWeights | None = None if reference is None else reference()
    if loaded is None:
        raise DeviceError(
            f"{bundle.path}: borrows {next(iter(bundle.borrowed))} of {bundle.lender.path}, which is not open; open the "
            "target first, and the draft model with it"
        )
    return loaded


def _renamed(arrays: Mapping[str, NDArray[Any]], theirs: str, own: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of one weight of the target, by their names in a model in which the weight is called ``own``."""
    return {
        f"{own}{label.removeprefix(theirs)}": array
        for label, array in arrays.items()
        if label.rpartition(".")[0] == theirs
    }


class _Stored(NamedTuple):
    """A part of a weight that is not in the kernels' layout."""

    label: str  # name of the constant in the model
    name: str
    part: str
    spec: StoredPart
    narrow: bool  # True: floats that become float32


def _stored(bundle: Bundle, graph: Graph) -> Iterator[_Stored]:
    """Yield the parts of int8 and float weights, except matrices that ONNX Runtime multiplies, which it reads itself."""
    matrices = {name for operation in graph.operations if isinstance(operation, Linear) for name in operation.weights}
    for name in sorted(read_weights(graph)):
        tensor = bundle.tensors[name]
        if not isinstance(tensor.scheme, FloatScheme | Int8Scheme):
            continue
        if isinstance(tensor.scheme, FloatScheme) and name in matrices and tensor.shape[0] > NARROW:
            continue
        for part, spec in tensor.scheme.parts(tensor.shape).items():
            narrow = isinstance(tensor.scheme, FloatScheme) and spec.dtype != np.float32
            yield _Stored(f"{name}.float32" if narrow else f"{name}.{part}", name, part, spec, narrow)


def stored_names(bundle: Bundle, graph: Graph) -> set[str]:
    """Return the names of the weights in memory that are not in the kernels' layout."""
    return {item.name for item in _stored(bundle, graph)}


def _stored_arrays(bundle: Bundle, graph: Graph, lent: LentWeights) -> dict[str, NDArray[Any]]:
    """Return int8 and float weights by their names in the model, float32 in the place of narrower floats, unless lent.

    Large ones have a mapping of their own, which ends where they end, and small ones are copies.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for item in _stored(bundle, graph):
        if item.name in lent.names:
            continue
        if item.spec.nbytes < _MAPPED_BYTES:
            array = bundle.copied(item.name, item.part)
        else:
            offset = bundle.tensors[item.name].offsets[item.part]
            file = bundle.holder(item.name)[0].weights_file
            array = np.asarray(np.memmap(file, item.spec.dtype, "r", offset=offset, shape=item.spec.shape))
        arrays[item.label] = array.astype(np.float32) if item.narrow else array
    return arrays


def program_room(bundle: Bundle, graph: Graph) -> ProgramRoom | None:
    """Return the size of the buffers of a program; None if ONNX Runtime must run the graph.

    The model is made for that without its weights. The result is cached because a planner asks for many limits.
    """
    if not is_fused():
        return None
    key = "program_room"
    if key not in bundle.derived:
        arrays: dict[str, NDArray[Any]] = {
            item.label: np.broadcast_to(np.zeros((), np.float32 if item.narrow else item.spec.dtype), item.spec.shape)
            for item in _stored(bundle, graph)
        }
        packed = dict.fromkeys(packed_names(graph, bundle), (1, 0))
        arrays |= {label: np.zeros(1, np.uint8) for name in packed for label in onnx_names(name)}
        layout = recurrent_layout(graph, 1)
        emitter = emit(
            graph,
            bundle.tensors,
            positions=1,
            recurrent=layout,
            packed=packed,
            kernels=True,
            fused_threads=1,
            arrays=arrays,
        )
        program = emitter.program()
        bundle.derived[key] = program and _room(program, graph, emitter.bound)
    result: ProgramRoom | None = bundle.derived[key]
    return result


def _room(program: FusedProgram, graph: Graph, bound: Mapping[str, str]) -> ProgramRoom:
    """Return the size of the buffers of ``program``; ``bound`` has its names of the values of ``graph``."""
    vocab, widest = graph.weights[embedding_name(graph)].shape[0], widest_value(graph)
    shapes = {name: value.shape for name, value in graph.values.items()}
    shapes |= {bound[name]: shape for name, shape in shapes.items() if name in bound and bound[name] not in shapes}
    floats = results = 0
    for names in program.slots:
        found = [shapes.get(name) or shapes.get(name.rpartition(".")[0], ("n", widest)) for name in names]
        results += vocab if ("r", vocab) in found else 0
        floats += max((int(shape[-1]) for shape in found if shape != ("r", vocab)), default=0)
    return ProgramRoom(floats, results)


def is_fused() -> bool:
    """Return False if the environment asks for single nodes."""
    return FUSED.value() is None or FUSED.is_on()


def _int8_initializer(name: str, tensor: Tensor, codes: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """Return the codes of an int8 matrix, uint8 [bytes], by their name in the model."""
    return {f"{name}.codes": codes.view(np.int8).reshape(tensor.scheme.parts(tensor.shape)["codes"].shape)}


def _packed_arrays(
    layout: Layout | None, stream: WeightStream | None, files: FileReader
) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.float32] | None]]:
    """Return the codes of the matrices in the kernels' layout, and the scale of those that have one for all."""
    if layout is None:
        return {}
    if stream is None:
        return layout.arrays(files.begin)
    return {name: layout.matrix(name, stream.matrices.get(name)) for name in layout.entries}


@dataclass(frozen=True, kw_only=True)
class FixedSizes:
    """The sizes of a bundle that no limit changes.

    Members:
        weights: resident bytes of all weights but lent ones, and of the scale that each row of the embedding has.
        packed: True if some of them are in the layout cache.
        widest: columns of the widest value of the graph except the logits.
    """

    weights: int
    packed: bool
    widest: int


def fixed_sizes(bundle: Bundle, graph: Graph, lent: LentWeights = NOTHING_LENT) -> FixedSizes:
    """Return the sizes that no limit changes, cached because a planner asks for many limits.

    Raises:
        UnsupportedError: ``check_one_file`` raised it.
    """
    key = ("fixed_sizes", *sorted(lent.names), lent.rows)
    if key not in bundle.derived:
        names = read_weights(graph)
        check_one_file(bundle, names - stored_names(bundle, graph) - set(packed_names(graph, bundle)))
        tensors = [bundle.tensors[name] for name in sorted(names - lent.names.keys())]
        vocab = graph.weights[embedding_name(graph)].shape[0]
        bundle.derived[key] = FixedSizes(
            weights=sum(map(resident_bytes, tensors)) + (0 if lent.rows else 4 * vocab),
            packed=any(isinstance(tensor.scheme, TernaryScheme | Int4Scheme) for tensor in tensors),
            widest=widest_value(graph),
        )
    result: FixedSizes = bundle.derived[key]
    return result


def resident_bytes(tensor: Tensor) -> int:
    """Return the resident bytes of a weight: in the kernels' layout, int8 codes as stored, floats as float32."""
    if isinstance(tensor.scheme, TernaryScheme | Int4Scheme):
        return layout_bytes(tensor)
    if isinstance(tensor.scheme, Int8Scheme):
        return tensor.nbytes
    return 4 * tensor.count


def weight_items(bundle: Bundle, graph: Graph, limits: Limits, lent: LentWeights = NOTHING_LENT) -> dict[str, int]:
    """Return the bytes of the weights in memory, by item of a plan. Streamed parts leave less than one part unused."""
    if not limits.weight_bytes:
        return {"weights": fixed_sizes(bundle, graph, lent).weights}
    sizes, always = _part_sizes(bundle, graph), _unsplit_bytes(bundle, graph)
    slots, room = sizes.divide(limits.weight_bytes - always)
    return {
        "weights_pinned": always + min(room, sizes.memory_bytes),
        "weights_window": sizes.window_bytes(slots),
    }


def _part_sizes(bundle: Bundle, graph: Graph) -> PartSizes:
    """Return the sizes of the parts that can be streamed, cached because a planner asks for many limits."""
    key = "part_sizes"
    if key not in bundle.derived:
        bundle.derived[key] = PartSizes.of(weight_parts(bundle, graph))
    result: PartSizes = bundle.derived[key]
    return result


def _unsplit_bytes(bundle: Bundle, graph: Graph) -> int:
    """Return the bytes of the weights that are always in memory."""
    return fixed_sizes(bundle, graph).weights - _part_sizes(bundle, graph).stored_bytes


def weight_split(bundle: Bundle, graph: Graph, limits: Limits) -> WeightSplit | None:
    """Return the weights that stay in memory, and those that are streamed; None: all of them are in memory."""
    if not limits.weight_bytes:
        return None
    return split_weights(weight_parts(bundle, graph), limits.weight_bytes - _unsplit_bytes(bundle, graph))


def least_weights(bundle: Bundle) -> int | None:
    """Return the smallest ``Limits.weight_bytes``; None if no weight can be streamed, or the window saves nothing."""
    graph = bundle_graph(bundle)
    sizes = _part_sizes(bundle, graph)
    least = _unsplit_bytes(bundle, graph) + sizes.least_bytes
    return least if sizes.count and least < fixed_sizes(bundle, graph).weights else None
