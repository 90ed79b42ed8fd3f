"""Write a bundle's graph from ids to logits with ONNX Runtime's stock operators, operation by operation.

edgedec/onnx does the same for edgedec's own sessions. Here rotations become part of the attention operator, which counts
positions by itself, and the offset of a norm is added to its weight.

Source: docs/ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.families import context_size
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Add, Attention, Embed, GatedActivation, Linear, Operation, RmsNorm, Rope, SelectRows
from edgedec.progress import Progress
from edgedec.quantize.exporters.onnx_recurrent import RecurrentWriter
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, TernaryScheme

__all__ = ["WEIGHTS", "GraphWriter"]

Array = NDArray[Any]

WEIGHTS = "weights.bin"
_ACTIVATIONS_INT8 = 4  # MatMulNBits' accuracy_level
_MS = "com.microsoft"
_INT8_ZERO = 128
_PAIRS = 8  # GroupQueryAttention requires a multiple of this number of rotary pairs
_PAGE = 4096


class GraphWriter:
    """A graph under construction. Tensors are written to the weights file immediately.

    ``bound`` maps the graph's values to the names of nodes' outputs; ``rotations`` holds the rotation of each value that the
    attention operator has yet to rotate.
    """

    def __init__(self, bundle: Bundle, graph: Graph, folder: Path) -> None:
        self.bundle, self.graph = bundle, graph
        self.file = (folder / WEIGHTS).open("wb")
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.bound: dict[str, str] = {"ids": "input_ids"}
        self.rotations: dict[str, Rope] = {}
        self._tables: dict[tuple[Any, ...], tuple[str, str]] = {}
        self._layer = 0

    def write(self, progress: Progress) -> str:
        """Write all operations and return the name of the logits."""
        if self.graph.states:
            self._lengths()
        lowered: Mapping[type[Operation], Callable[[Any], str]] = {
            **RecurrentWriter(self).lowered,
            Embed: self._embed,
            RmsNorm: self._norm,
            Linear: self._linear,
            Rope: self._rope,
            Attention: self._attention,
            GatedActivation: self._gated,
            Add: lambda op: self.node("Add", [self.bound[name] for name in op.inputs], op.name),
            SelectRows: lambda op: self.bound[op.inputs[0]],  # the graph returns the logits of all rows
        }
        for op in self.graph.operations:
            if type(op) not in lowered:
                raise UnsupportedError(
                    f"{self.bundle.path}: {op.kind} {op.name} cannot be exported as ONNX; "
                    "the float reference runs it (--device float_reference)"
                )
            self.bound[op.outputs[0]] = lowered[type(op)](op)
            if isinstance(op, Attention):
                progress(f"layer {self._layer}", self._layer, len(self.graph.states))
        return self.bound[self.graph.outputs[0]]

    def node(self, kind: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, domain=domain, **attributes))
        return output

    def tensor(self, name: str, array: Array) -> str:
        """Add an initializer in the weights file, aligned to a page so that it can be mapped."""
        self.file.write(b"\0" * (-self.file.tell() % _PAGE))
        offset, data = self.file.tell(), np.ascontiguousarray(array)
        self.file.write(data.view(np.uint8).reshape(-1).data)
        kind = helper.np_dtype_to_tensor_dtype(data.dtype)
        proto = TensorProto(name=name, data_type=kind, dims=data.shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", WEIGHTS), ("offset", str(offset)), ("length", str(data.nbytes))):
            proto.external_data.add(key=key, value=value)
        self.tensors.append(proto)
        return name

    def constant(self, name: str, values: Sequence[int]) -> str:
        self.tensors.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], list(values)))
        return name

    def scalar(self, name: str, value: float) -> str:
        self.tensors.append(helper.make_tensor(name, TensorProto.FLOAT, [], [value]))
        return name

    def _lengths(self) -> None:
        """Compute ``seqlens_k`` int32 [b] and ``total_length`` int32 [] for attention from the mask int64 [b, total]."""
        one = self.constant("one", [1])
        summed = self.node("ReduceSum", ["attention_mask", one], "mask.sum", keepdims=0)
        last = self.node("Sub", [summed, one], "mask.last")
        self.node("Cast", [last], "seqlens_k", to=TensorProto.INT32)
        shape = self.node("Shape", ["attention_mask"], "mask.shape", start=1, end=2)
        length = self.node("Squeeze", [shape], "mask.length")
        self.node("Cast", [length], "total_length", to=TensorProto.INT32)

    def _embed(self, op: Embed) -> str:
        """Convert ids int64 [b, s] to rows float32 [b, s, hidden]."""
        name, ids = op.weight, self.bound[op.inputs[0]]
        scheme = self.bundle.tensors[name].scheme
        if isinstance(scheme, TernaryScheme):
            raise UnsupportedError(
                f"{self.bundle.path}: {op.kind} {op.name} looks up rows of {name}, which is ternary; ONNX has no operator "
                "for that; export it as gguf or safetensors"
            )
        part = "values" if isinstance(scheme, FloatScheme) else "codes"
        rows = self.node("Gather", [self.tensor(name, self.bundle.array(name, part)), ids], f"{name}.rows")
        rows = self.node("Cast", [rows], f"{name}.float", to=TensorProto.FLOAT)
        if not isinstance(scheme, FloatScheme):
            scale = self.tensor(f"{name}.scale", self.bundle.array(name, "scale")[:, None])
            rows = self.node("Mul", [rows, self.node("Gather", [scale, ids], f"{name}.scale.rows")], f"{name}.out")
        if op.scale == 1:
            return rows
        return self.node("Mul", [rows, self.scalar(f"{op.name}.factor", op.scale)], f"{op.name}.scaled")

    def _norm(self, op: RmsNorm) -> str:
        """Normalize; heads become an axis of their own for a norm per head, and are joined again."""
        x = self.bound[op.inputs[0]]
        values = self.bundle.weight(op.weight).dense() + np.float32(op.offset)
        gain, width = self.tensor(f"{op.name}.gain", values), len(values)
        settings: dict[str, Any] = {"axis": -1, "epsilon": op.eps, "stash_type": 1}
        if op.heads == 1:
            return self.node("SimplifiedLayerNormalization", [x, gain], op.name, **settings)
        apart = self.constant(f"{op.name}.apart", [0, 0, op.heads, width])
        together = self.constant(f"{op.name}.together", [0, 0, op.heads * width])
        heads = self.node("Reshape", [x, apart], f"{op.name}.heads")
        normed = self.node("SimplifiedLayerNormalization", [heads, gain], f"{op.name}.normed", **settings)
        return self.node("Reshape", [normed, together], op.name)

    def _linear(self, op: Linear) -> str:
        ((name, bias),) = zip(op.weights, op.biases, strict=True)
        output = self._product(name, self.bound[op.inputs[0]], op.name)
        if bias:
            values = self.tensor(bias, self.bundle.weight(bias).dense())
            output = self.node("Add", [output, values], f"{op.name}.biased")
        if op.soft_cap is None:
            return output
        cap = self.scalar(f"{op.name}.cap", op.soft_cap)
        bent = self.node("Tanh", [self.node("Div", [output, cap], f"{op.name}.in_caps")], f"{op.name}.bent")
        return self.node("Mul", [bent, cap], f"{op.name}.capped")

    def _product(self, name: str, x: str, at: str) -> str:
        outputs, inputs = self.bundle.tensors[name].shape
        if isinstance(self.bundle.tensors[name].scheme, FloatScheme):
            rows = self.tensor(f"{at}.weight", self.bundle.weight(name).dense())
            turned = self.node("Transpose", [rows], f"{at}.turned", perm=[1, 0])
            return self.node("MatMul", [x, turned], f"{at}.product")
        total = ""
        for plane, (bits, block, codes, scale) in enumerate(_blocks(self.bundle, name)):
            part = f"{at}.{plane}"
            sources = [x, self.tensor(f"{part}.codes", codes), self.tensor(f"{part}.scales", scale)]
            sizes = {"N": outputs, "K": inputs, "bits": bits, "block_size": block}
            product = self.node(
                "MatMulNBits", sources, f"{part}.product", _MS, accuracy_level=_ACTIVATIONS_INT8, **sizes
            )
            total = self.node("Add", [total, product], f"{part}.sum") if total else product
        return total

    def _rope(self, op: Rope) -> str:
        pairs = len(op.inverse_frequencies)
        if pairs % _PAIRS:
            raise UnsupportedError(
                f"{self.bundle.path}: {op.kind} {op.name} rotates {2 * pairs} columns of a head; ONNX Runtime's "
                f"GroupQueryAttention rotates multiples of {2 * _PAIRS}; export it as gguf or safetensors"
            )
        self.rotations[op.outputs[0]] = op
        return self.bound[op.inputs[0]]

    def _attention(self, op: Attention) -> str:
        state, at = self.graph.states[op.state], self._layer
        self._layer += 1
        turns = {(turn.inverse_frequencies, turn.magnitude, turn.layout) if turn else None
                 for turn in map(self.rotations.get, op.inputs[:2])}  # fmt: skip
        assert len(turns) == 1, "queries and keys must have the same rotation"
        past = [f"past_key_values.{at}.{part}" for part in ("key", "value")]
        present = [f"present.{at}.{part}" for part in ("key", "value")]
        inputs = [*(self.bound[name] for name in op.inputs), *past, "seqlens_k", "total_length"]
        settings: dict[str, Any] = {
            "num_heads": op.heads,
            "kv_num_heads": state.kv_heads,
            "scale": op.scale,
            "softcap": op.soft_cap or 0.0,
            "local_window_size": state.window or -1,
        }
        for turn in turns - {None}:
            assert turn is not None
            inputs += self._rotary_tables(*turn[:2])
            settings |= {"do_rotary": 1, "rotary_interleaved": int(turn[2] == "interleaved")}
        node = helper.make_node(
            "GroupQueryAttention", inputs, [op.name, *present], name=op.name, domain=_MS, **settings
        )
        self.nodes.append(node)
        return op.name

    def _rotary_tables(self, frequencies: Sequence[float], magnitude: float) -> tuple[str, str]:
        """Return the names of cosines and sines, float32 [positions, pairs]; layers with the same rotation share them."""
        key = tuple(frequencies), magnitude
        if key not in self._tables:
            angles = np.arange(context_size(self.bundle.config))[:, None] * np.asarray(frequencies)[None]
            number = len(self._tables)
            cos, sin = ((part(angles) * magnitude).astype(np.float32) for part in (np.cos, np.sin))
            self._tables[key] = self.tensor(f"cos.{number}", cos), self.tensor(f"sin.{number}", sin)
        return self._tables[key]

    def _gated(self, op: GatedActivation) -> str:
        gate, up = (self.bound[name] for name in op.inputs)
        if op.activation == "silu":
            active = self.node("Mul", [gate, self.node("Sigmoid", [gate], f"{op.name}.sigmoid")], f"{op.name}.silu")
        elif op.activation == "gelu_tanh":
            active = self.node("Gelu", [gate], f"{op.name}.gelu", approximate="tanh")
        else:
            positive = self.node("Relu", [gate], f"{op.name}.relu")
            active = self.node("Mul", [positive, positive], f"{op.name}.relu2")
        return self.node("Mul", [active, up], op.name)


def _blocks(bundle: Bundle, name: str) -> list[tuple[int, int, Array, Array]]:
    """Return bits, block size, codes uint8 [out, blocks, bytes] and scales float32 [out, blocks] of each plane.

    They are inputs of MatMulNBits. Without zero points a code stands for itself minus half the range: minus 2 at 2 bits and
    minus 8 at 4 bits, as in a bundle, and minus 128 at 8 bits.
    """
    scheme, (outputs, inputs) = bundle.tensors[name].scheme, bundle.tensors[name].shape
    if isinstance(scheme, TernaryScheme):
        block = scheme.block(inputs)
        planes, scale = bundle.array(name, "codes"), np.asarray(bundle.array(name, "scale"), np.float32)
        if scheme.tied:
            powers = np.float32(3) ** np.arange(scheme.planes - 1, -1, -1, dtype=np.float32)
            scale = scale * powers[:, None, None]
        if scheme.group_size:
            return [(2, block, codes, scales) for codes, scales in zip(planes, scale, strict=True)]
        return [(2, block, codes, np.full(codes.shape[:2], scale[0], np.float32)) for codes in planes]
    if isinstance(scheme, Int4Scheme):
        if scheme.offset:
            raise UnsupportedError(
                f"tensor {name}: int4 with minima, as GGUF's Q4_K, has no place in MatMulNBits; export it as GGUF"
            )
        return [(4, scheme.GROUP, bundle.array(name, "codes"), bundle.array(name, "scale").astype(np.float32))]
    block = next((size for size in (128, 64, 32) if inputs % size == 0), 0)
    if not isinstance(scheme, Int8Scheme) or not block:
        raise UnsupportedError(
            f"tensor {name}: an int8 matrix needs rows of a multiple of 32 to be exported as ONNX, not {inputs}"
        )
    stored = bundle.array(name, "codes") if scheme.rows else bundle.array(name, "codes").T
    codes = (stored.astype(np.int16) + _INT8_ZERO).astype(np.uint8).reshape(outputs, -1, block)
    return [(8, block, codes, np.repeat(bundle.array(name, "scale")[:, None], inputs // block, axis=1))]
