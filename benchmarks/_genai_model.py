"""Our bundles as onnxruntime-genai wants a model: one ONNX graph with ids in, logits and a cache of its own, and its config.

The same codes as ours: trits in MatMulNBits of 2 bits, int8 matrices in MatMulNBits of 8. Both are told to quantize
activations to int8 as ours are, which ONNX Runtime does block by block, not token by token. Its own attention operator
rotates, and keeps keys and values in float32. Logits end with the tokenizer's ids: the head is computed whole, and cut.

Source: docs/ContribOperators.md of ONNX Runtime; the names of src/config.h in onnxruntime-genai.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgedec.atomic import new_folder
from edgedec.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.families import build_graph
from edgedec.ops import RmsNorm, Rope
from edgedec.progress import Progress, silent
from edgedec.schemes import FloatScheme, Int8Scheme, TernaryScheme

__all__ = ["decoder_config", "weight_bytes", "write_config", "write_model"]

Array = NDArray[Any]

_CONFIG = "genai_config.json"
_GRAPH, _WEIGHTS = "model.onnx", "weights.bin"
_OPSET, _IR = 21, 10
_ACTIVATIONS_INT8 = 4  # MatMulNBits' accuracy_level
_MS = "com.microsoft"
_INT8_ZERO = 128
_PAGE = 4096


class _Writer:
    """A graph under construction. Tensors go to the weights file at once."""

    def __init__(self, bundle: Bundle, folder: Path) -> None:
        self.bundle, self.config = bundle, bundle.config
        self.file = (folder / _WEIGHTS).open("wb")
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def node(self, kind: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, domain=domain, **attributes))
        return output

    def tensor(self, name: str, array: Array) -> str:
        """An initializer in the weights file, page by page so that it can be mapped."""
        self.file.write(b"\0" * (-self.file.tell() % _PAGE))
        offset, data = self.file.tell(), np.ascontiguousarray(array)
        self.file.write(data.view(np.uint8).reshape(-1).data)
        kind = helper.np_dtype_to_tensor_dtype(data.dtype)
        proto = TensorProto(name=name, data_type=kind, dims=data.shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", _WEIGHTS), ("offset", str(offset)), ("length", str(data.nbytes))):
            proto.external_data.add(key=key, value=value)
        self.tensors.append(proto)
        return name

    def constant(self, name: str, values: Sequence[int]) -> str:
        self.tensors.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], list(values)))
        return name

    def embed(self, name: str, ids: str) -> str:
        """ids int64 [b, s] -> float32 [b, s, hidden]."""
        scheme = self.bundle.tensors[name].scheme
        part = "values" if isinstance(scheme, FloatScheme) else "codes"
        rows = self.node("Gather", [self.tensor(name, self.bundle.array(name, part)), ids], f"{name}.rows")
        rows = self.node("Cast", [rows], f"{name}.float", to=TensorProto.FLOAT)
        if isinstance(scheme, FloatScheme):
            return rows
        scale = self.tensor(f"{name}.scale", self.bundle.array(name, "scale")[:, None])
        return self.node("Mul", [rows, self.node("Gather", [scale, ids], f"{name}.scale.rows")], f"{name}.out")

    def norm(self, name: str, x: str, eps: float) -> str:
        gain = self.tensor(name, self.bundle.array(name, "values").astype(np.float32))
        return self.node("SimplifiedLayerNormalization", [x, gain], f"{name}.out", axis=-1, epsilon=eps, stash_type=1)

    def linear(self, name: str, x: str) -> str:
        outputs, inputs = self.bundle.tensors[name].shape
        bits, block, codes, scale = _blocks(self.bundle, name)
        sources = [x, self.tensor(f"{name}.codes", codes), self.tensor(f"{name}.scales", scale)]
        sizes = {"N": outputs, "K": inputs, "bits": bits, "block_size": block}
        return self.node("MatMulNBits", sources, f"{name}.product", _MS, accuracy_level=_ACTIVATIONS_INT8, **sizes)


def _blocks(bundle: Bundle, name: str) -> tuple[int, int, Array, Array]:
    """Bits, block size, codes uint8 [out, blocks, bytes] and scales float32 [out, blocks] of a matrix, for MatMulNBits.

    Without zero points a code means itself less half the range: 2 at 2 bits, as in a bundle, and 128 at 8 bits.
    """
    scheme, (outputs, inputs) = bundle.tensors[name].scheme, bundle.tensors[name].shape
    if isinstance(scheme, TernaryScheme) and scheme.planes == 1 and not scheme.group_size:
        block = scheme.block(inputs)
        codes = bundle.array(name, "codes")[0]
        return 2, block, codes, np.full(codes.shape[:2], bundle.array(name, "scale")[0], np.float32)
    block = next((size for size in (128, 64, 32) if inputs % size == 0), 0)
    if not isinstance(scheme, Int8Scheme) or not block:
        raise UnsupportedError(f"tensor {name}: neither one plane of trits with one scale, nor int8 in blocks of 32")
    stored = bundle.array(name, "codes") if scheme.rows else bundle.array(name, "codes").T
    codes = (stored.astype(np.int16) + _INT8_ZERO).astype(np.uint8).reshape(outputs, -1, block)
    return 8, block, codes, np.repeat(bundle.array(name, "scale")[:, None], inputs // block, axis=1)


def _rotation(frequencies: Sequence[float], positions: int) -> tuple[Array, Array]:
    """float32 [positions, head_dim / 2] each: cosines and sines."""
    angles = np.arange(positions)[:, None] * np.asarray(frequencies)[None]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _layer(writer: _Writer, at: int, x: str, eps: float, attention: Mapping[str, Any]) -> str:
    name = f"model.layers.{at}"
    normed = writer.norm(f"{name}.input_layernorm.weight", x, eps)
    q, k, v = (writer.linear(f"{name}.self_attn.{part}_proj.weight", normed) for part in "qkv")
    past = [f"past_key_values.{at}.{part}" for part in ("key", "value")]
    present = [f"present.{at}.{part}" for part in ("key", "value")]
    mixed = f"{name}.attention"
    inputs = [q, k, v, *past, "seqlens_k", "total_length", "cos", "sin"]
    made = helper.make_node("GroupQueryAttention", inputs, [mixed, *present], name=mixed, domain=_MS, **attention)
    writer.nodes.append(made)
    x = writer.node("Add", [x, writer.linear(f"{name}.self_attn.o_proj.weight", mixed)], f"{name}.mixed")
    normed = writer.norm(f"{name}.post_attention_layernorm.weight", x, eps)
    gate, up = (writer.linear(f"{name}.mlp.{part}_proj.weight", normed) for part in ("gate", "up"))
    silu = writer.node("Mul", [gate, writer.node("Sigmoid", [gate], f"{gate}.sigmoid")], f"{gate}.silu")
    wide = writer.node("Mul", [silu, up], f"{name}.wide")
    return writer.node("Add", [x, writer.linear(f"{name}.mlp.down_proj.weight", wide)], f"{name}.out")


def _sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that both the graph and genai's configuration state, by genai's names."""
    heads = config["num_attention_heads"]
    return {
        "head_size": config.get("head_dim") or config["hidden_size"] // heads,
        "hidden_size": config["hidden_size"],
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "num_hidden_layers": config["num_hidden_layers"],
    }


def decoder_config(bundle: Bundle, folder: str, threads: int) -> dict[str, Any]:
    """genai's description of a model that ``write_model`` wrote into ``folder``, relative to the configuration's."""
    options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1, "provider_options": []}
    return {
        "filename": f"{folder}/{_GRAPH}",
        "session_options": options,
        **_sizes(bundle.config),
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }


def write_config(
    folder: Path, decoder: Mapping[str, Any], draft: Mapping[str, Any] | None, bundle: Bundle, positions: int
) -> None:
    """A folder that genai opens as a model: greedy decoding, with ``draft`` if there is one."""
    eos = list(bundle.tokens.eos) or [bundle.tokens.size]
    bos = eos[0] if bundle.tokens.bos is None else bundle.tokens.bos
    model: dict[str, Any] = {"type": "llama", "vocab_size": bundle.tokens.size, "context_length": positions}
    model |= {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": eos[0], "decoder": decoder}
    if draft is not None:
        model["draft"] = draft
    search = {"do_sample": False, "max_length": positions, "past_present_share_buffer": True}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CONFIG).write_text(json.dumps({"model": model, "search": search}, indent=1))


def weight_bytes(folder: Path) -> int:
    """Of a model that ``write_model`` wrote; most of them are read in every pass, but not the embedding."""
    return (folder / _WEIGHTS).stat().st_size


def _signature(config: Mapping[str, Any], vocab: int) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    sizes = _sizes(config)
    value, integer, real = helper.make_tensor_value_info, TensorProto.INT64, TensorProto.FLOAT
    inputs = [value("input_ids", integer, ["b", "s"]), value("attention_mask", integer, ["b", "total"])]
    outputs = [value("logits", real, ["b", "s", vocab])]
    for at in range(sizes["num_hidden_layers"]):
        for part in ("key", "value"):
            heads, width = sizes["num_key_value_heads"], sizes["head_size"]
            inputs.append(value(f"past_key_values.{at}.{part}", real, ["b", heads, "past", width]))
            outputs.append(value(f"present.{at}.{part}", real, ["b", heads, "kept", width]))
    return inputs, outputs


def write_model(bundle: Bundle, folder: Path, progress: Progress = silent) -> None:
    """Write ``bundle``, of the Llama family, as an ONNX model: the graph and its weights.

    Raises:
        UnsupportedError: what genai's operators cannot express; says what.
    """
    config = bundle.config
    if config.get("model_type") != "llama" or config.get("attention_bias") or config.get("mlp_bias"):
        raise UnsupportedError(f"{bundle.path}: only Llama without biases is written as onnxruntime-genai's model")
    graph = build_graph(config)
    bundle.check(graph)
    eps = next(op.eps for op in graph.operations if isinstance(op, RmsNorm))
    rope = next(op for op in graph.operations if isinstance(op, Rope))
    head = graph.operations[-1].weight_names[0]
    sizes, vocab = _sizes(config), bundle.tokens.size
    attention = {
        "num_heads": sizes["num_attention_heads"],
        "kv_num_heads": sizes["num_key_value_heads"],
        "scale": sizes["head_size"] ** -0.5,
        "do_rotary": 1,
        "rotary_interleaved": int(rope.layout == "interleaved"),
    }
    with new_folder(folder, _GRAPH) as new:
        writer = _Writer(bundle, new)
        with writer.file:
            for name, values in zip(
                ("cos", "sin"), _rotation(rope.inverse_frequencies, config["max_position_embeddings"]), strict=True
            ):
                writer.tensor(name, values)
            _lengths(writer)
            x = writer.embed("model.embed_tokens.weight", "input_ids")
            for at in range(sizes["num_hidden_layers"]):
                progress(f"layer {at}", at, sizes["num_hidden_layers"])
                x = _layer(writer, at, x, eps, attention)
            logits = writer.linear(head, writer.norm("model.norm.weight", x, eps))
            ends = [writer.constant(f"slice.{part}", [value]) for part, value in zip("abc", (0, vocab, 2), strict=True)]
            writer.node("Slice", [logits, *ends], "logits")
        inputs, outputs = _signature(config, vocab)
        made = helper.make_graph(writer.nodes, "decoder", inputs, outputs, writer.tensors)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_MS, 1)]
        (new / _GRAPH).write_bytes(helper.make_model(made, opset_imports=opsets, ir_version=_IR).SerializeToString())


def _lengths(writer: _Writer) -> None:
    """``seqlens_k`` int32 [b] and ``total_length`` int32 [], of the attention operator, from the mask int64 [b, total]."""
    one = writer.constant("one", [1])
    summed = writer.node("ReduceSum", ["attention_mask", one], "mask.sum", keepdims=0)
    last = writer.node("Sub", [summed, one], "mask.last")
    writer.node("Cast", [last], "seqlens_k", to=TensorProto.INT32)
    shape = writer.node("Shape", ["attention_mask"], "mask.shape", start=1, end=2)
    length = writer.node("Squeeze", [shape], "mask.length")
    writer.node("Cast", [length], "total_length", to=TensorProto.INT32)
